"""Compares workloads' outputs, in a process that runs one real forward pass of each on the CPU.

    request   {"workloads": [{…}, …], "batch_size": 10, "seq_len": null, "seed": 0}
    answer    {"outputs": [{…}, …]} of all but the first, or {"error": {…}}

This module does not import torch; `autofit_workers.trials.measure.outputs` is the main program of that
process.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.process.child_process import NO_GPU, ChildProcess
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import TrialError, WorkloadRef


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """Comparison of the outputs of one workload's model with those of the first workload's model.

    Attributes:
        workload: name of the workload.
        equal: whether the outputs are equal but for rounding; None if they cannot be compared.
        is_identical: whether the outputs are equal bit for bit.
        reason: why the outputs cannot be compared; else empty.
        largest_difference: largest absolute difference over all outputs; None if it is not finite.
        largest_output: largest absolute value of the first model's outputs; None if it is not finite.
        num_shared: number of parameters and buffers that were given the first model's values.
        not_shared: names of parameters and buffers that only one of the two has, or in another shape.
    """

    workload: str
    equal: bool | None = None
    is_identical: bool = False
    reason: str = ""
    largest_difference: float | None = None
    largest_output: float | None = None
    num_shared: int = 0
    not_shared: tuple[str, ...] = ()


class ComparisonFailedError(Exception):
    """Outputs could not be compared, because a workload failed or the process that ran the workloads.

    Attributes:
        error: the failure, in words for a user; None if the process died or took too long.
    """

    def __init__(self, message: str, error: TrialError | None = None) -> None:
        super().__init__(message)
        self.error = error


def compare_outputs(
    workloads: Sequence[WorkloadRef],
    *,
    batch_size: int,
    deadline_seconds: float,
    seq_len: int | None = None,
    seed: int = 0,
    permissions: Permissions = Permissions(),  # noqa: B008 - frozen
) -> tuple[OutputComparison, ...]:
    """Runs one forward pass of each workload on the CPU and compares its outputs with the first workload's.

    Models are built and batches made from the same seed, and a model takes over the first one's
    parameters where names and shapes agree.

    Args:
        workloads: the workloads; the first is compared with each of the others.
        batch_size: samples of the batch.
        deadline_seconds: longest time that all forward passes together may take.
        seq_len: size of a sample, such as its tokens; None for each workload's own.
        seed: seed of models and batches.
        permissions: what the workloads may do in the process that runs them.

    Returns:
        A comparison for each workload but the first.

    Raises:
        ComparisonFailedError: a workload fails, or the process dies.
    """
    request = {
        "workloads": [dataclasses.asdict(workload) for workload in workloads],
        "batch_size": batch_size,
        "seq_len": seq_len,
        "seed": seed,
    }
    try:
        process = ChildProcess("autofit_workers.trials.measure.outputs", NO_GPU, permissions=permissions)
    except OSError as error:
        raise ComparisonFailedError(f"no process could be started for the models ({error})") from error
    try:
        answer = parse_json(process.ask(json.dumps(request), time.monotonic() + deadline_seconds))
        return _compared(answer)
    except TimeoutError:
        raise ComparisonFailedError(f"the models did not finish within {deadline_seconds:g} s") from None
    except (EOFError, ValueError) as error:
        log = process.log.text().strip().splitlines()
        raise ComparisonFailedError(
            f"their process died: {log[-1] if log else 'it printed nothing'}"
        ) from error
    finally:
        process.kill()
        process.log.close()


def _compared(answer: Any) -> tuple[OutputComparison, ...]:
    """Output comparisons, parsed from the JSON that the comparing process answers.

    Raises:
        ValueError: the answer is malformed.
    """
    if not isinstance(answer, dict):
        raise ValueError("it answered no object")  # noqa: TRY004 - what the process says is a value
    if "error" in answer:
        told = from_plain(TrialError, answer["error"])
        raise ComparisonFailedError(told.message, told)
    return from_plain(tuple[OutputComparison, ...], answer.get("outputs"))
