"""Accelerate's decorator, by the name and signature that its users know."""

from __future__ import annotations

import inspect

from accelerate.utils import find_executable_batch_size as of_accelerate

import autofit
from autofit.integrations.accelerate import find_executable_batch_size


def test_it_is_called_as_accelerates_and_the_same_as_autofits() -> None:
    assert find_executable_batch_size is autofit.find_executable_batch_size
    ours = inspect.signature(find_executable_batch_size).parameters
    theirs = inspect.signature(of_accelerate).parameters
    assert [name for name, each in ours.items() if each.kind is each.POSITIONAL_OR_KEYWORD] == [*theirs]
    assert all(ours[name].default == each.default for name, each in theirs.items())
