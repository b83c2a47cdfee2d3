"""Fixtures of the profile that can be followed by hand."""

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
    """The `profile` from a trace without calls, stacks and names."""
    bare = tuple(dataclasses.replace(each, stack=(), name="") for each in TRACE.allocations)
    return dataclasses.replace(PROFILE, trace=dataclasses.replace(TRACE, allocations=bare, calls=()))
