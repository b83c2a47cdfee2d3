"""Turns errors of autofit into outcomes of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autofit.errors import AutofitError, UnusablePyTorchError


@contextmanager
def as_outcomes() -> Iterator[None]:
    """Context in which errors of autofit fail the test by their sentence, or skip it."""
    try:
        yield
    except UnusablePyTorchError as error:
        raise pytest.skip.Exception(str(error)) from None
    except AutofitError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
