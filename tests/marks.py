"""Marks for the processes that tests start, by which their descendants are found too."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# The settings refuse unknown AUTOFIT_… variables.
MARK = "TEST_MARK_OF_AUTOFIT"
CRD_FOLDER_VARIABLE = "TEST_CRD_DIR_OF_AUTOFIT"  # AUTOFIT_CRD_DIR, as the tests' processes have it


@contextmanager
def marking() -> Iterator[str]:
    """Marks all processes started within the block; yields the mark's value."""
    value = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, value)
        yield value
