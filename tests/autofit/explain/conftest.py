"""The profile that can be followed by hand, as fixtures."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.explain.profile import Profile
from tests.autofit.explain.toy import PROFILE, TRACE


@pytest.fixture
def profile() -> Profile:
    return PROFILE


@pytest.fixture
def plain_profile() -> Profile:
    """The same from a trace without calls and stacks."""
    bare = tuple(dataclasses.replace(each, stack=(), name="") for each in TRACE.allocations)
    return dataclasses.replace(PROFILE, trace=dataclasses.replace(TRACE, allocations=bare, calls=()))
