"""Turns errors about operators that a fake device cannot run into errors with messages for the user."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from autofit_workers.pytorch.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from autofit_workers.spec.errors import DataDependentError, UnsupportedError, WorkerError
from autofit_workers.tracing.kernels.following import how_to_register
from autofit_workers.tracing.kernels.registry import is_pytorchs
from autofit_workers.tracing.recording.call_sites import is_users

Unpredictable = DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException


@contextmanager
def explained() -> Iterator[None]:
    """Context that replaces errors of fake tensors by errors with messages for the user.

    Raises:
        DataDependentError: the step needs values that only a real run has.
        UnsupportedError: an operator cannot be run without a device.
    """
    try:
        yield
    except Unpredictable as error:
        raise explanation(error, where_of(error)) from error


def explanation(
    error: DataDependentOutputException | DynamicOutputShapeException | UnsupportedOperatorException,
    where: str,
) -> WorkerError:
    """Error with a message for the user that replaces `error`, which a fake device raised.

    Args:
        where: line of the user's code at which it was raised, as `file:line:function`.
    """
    if isinstance(error, UnsupportedOperatorException):
        if not is_pytorchs(error.func.namespace):
            return UnsupportedError(
                f"{error.func} at {where} cannot be run without a GPU, for nothing says what it returns: "
                f"register it beside the workload ({how_to_register(error.func)}), or measure instead"
            )
        return UnsupportedError(f"{error.func} at {where} cannot be run without a GPU: measure instead")
    return DataDependentError(
        f"{error.func} at {where} depends on values, which a prediction does not "
        "have: measure instead (`--probe measure` on a machine with the GPU, or `--device cpu`), or "
        "remove it from the step"
    )


def where_of(error: BaseException) -> str:
    """Innermost line of the user's code in an error's traceback, as `file:line:function`."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [
        f"{frame.f_code.co_filename}:{line}:{frame.f_code.co_name}"
        for frame, line in frames
        if is_users(frame.f_code)
    ]
    return lines[-1] if lines else "an unknown line"
