"""Child process that compares models' outputs, for `autofit_workers.trials.measure.comparison`."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from autofit_workers.process.messages import received, told
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.trials.measure import cpu, steps
from autofit_workers.trials.measure.comparison import OutputComparison
from autofit_workers.workload import step as workload_step
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.step import infer_step
from autofit_workers.workload.workload import Workload, check_batch, resolve, tensors_of

# Allowed difference of outputs, relative to the largest output: sums in another order round differently.
_TOLERANCE = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 1e-4, torch.complex64: 1e-4}
_TOLERANCE_OF_HALF = 2e-2


def main(requests_fd: int, answers_fd: int) -> None:
    """Answers requests to compare workloads' outputs, one JSON line each, until an empty line comes.

    Args:
        requests_fd, answers_fd: file descriptors that requests are read from and answers written to.
    """
    requests = received(requests_fd, answers_fd)
    with os.fdopen(answers_fd, "w", encoding="utf-8") as answers:
        while request := requests.get():
            answers.write(json.dumps(_answer(json.loads(request))) + "\n")
            answers.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer to a request: a comparison for each workload but the first, or an error."""
    references = [WorkloadRef.from_dict(each) for each in request["workloads"]]
    try:
        knobs = Knobs(seq_len=request["seq_len"])
        workloads = [with_overrides(resolve(each), knobs, Setup(mode="infer")) for each in references]
        with cpu.data_limit(cpu.limit_of_machine()):
            found = compared(workloads, batch_size=request["batch_size"], seed=request["seed"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the process boundary
        if not cpu.is_out_of_memory(error):
            return {"error": dataclasses.asdict(told(error))}
        reason = f"this machine has too little memory to run the models ({steps.in_one_line(error)})"
        found = [OutputComparison(workload=each.name, reason=reason) for each in references[1:]]
    return {"outputs": [dataclasses.asdict(one) for one in found]}


def compared(workloads: Sequence[Workload], *, batch_size: int, seed: int) -> list[OutputComparison]:
    """Runs one forward pass of every workload, and compares outputs with those of the first workload.

    Returns:
        A comparison for each workload but the first.
    """
    first = _Pass.of(workloads[0], batch_size, seed, {})
    found = []
    for workload in workloads[1:]:
        other = _Pass.of(workload, batch_size, seed, first.state)
        found.append(_compared(workload.name, first, other))
    return found


@dataclass(frozen=True)
class _Pass:
    """Finished forward pass of a workload's model: its batch, its outputs and the model's state.

    Attributes:
        state: the model's parameters and buffers, by name.
        shared: names of the parameters and buffers that were given another model's values.
        batch, outputs: the tensors that the model was given, and that it returned.
    """

    state: dict[str, Tensor]
    shared: frozenset[str]
    batch: list[Tensor]
    outputs: list[Tensor]

    @classmethod
    def of(cls, workload: Workload, batch_size: int, seed: int, values: Mapping[str, Tensor]) -> _Pass:
        workload_step.seed(seed)
        model = workload.build_model().eval()
        shared = _take_over(model, values)
        workload_step.seed(seed)
        batch = workload.make_batch(batch_size, torch.device("cpu"))
        check_batch(batch, batch_size)
        given = [tensor.clone() for tensor in tensors_of(batch)]
        outputs: list[Tensor] = []
        with _outputs_of(model, outputs):
            infer_step(workload, model, batch)
        return cls(_state(model), shared, given, outputs)


def _state(model: torch.nn.Module) -> dict[str, Tensor]:
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {name: value for name, value in state.items() if not is_lazy(value)}


def _take_over(model: torch.nn.Module, values: Mapping[str, Tensor]) -> frozenset[str]:
    """Copies values into those parameters and buffers of a model whose names and shapes agree.

    Args:
        model: the model.
        values: parameters and buffers of another model, by name.

    Returns:
        The names of those that were copied.
    """
    shared = set()
    for name, own in _state(model).items():
        if name in values and values[name].shape == own.shape:
            own.copy_(values[name])
            shared.add(name)
    return frozenset(shared)


@contextmanager
def _outputs_of(model: torch.nn.Module, outputs: list[Tensor]) -> Iterator[None]:
    """Context manager that collects the tensors that a model returns to its caller.

    Results that only the model's own modules see are left out.

    Args:
        model: the model.
        outputs: list that copies of the tensors are added to.
    """
    own = set(model.modules())
    running: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, _args: object) -> None:
        if module in own:
            running.append(module)

    def leave(module: torch.nn.Module, _args: object, result: object) -> None:
        if module in own:
            running.pop()
            if not running:
                outputs.extend(tensor.clone() for tensor in tensors_of(result))

    hooks = torch.nn.modules.module
    handles = [hooks.register_module_forward_pre_hook(enter), hooks.register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _compared(name: str, first: _Pass, other: _Pass) -> OutputComparison:
    """Comparison of two models' outputs, or the reason why they cannot be compared."""
    not_shared = tuple(sorted((first.state.keys() | other.state.keys()) - other.shared))
    answer = OutputComparison(workload=name, num_shared=len(other.shared), not_shared=not_shared)
    reason = _why_not_comparable(first, other)
    if reason:
        return dataclasses.replace(answer, reason=reason)
    pairs = list(zip(first.outputs, other.outputs, strict=True))
    return dataclasses.replace(
        answer,
        equal=all(_difference(mine, theirs) <= _allowed(mine) for mine, theirs in pairs),
        is_identical=all(torch.equal(mine, theirs) for mine, theirs in pairs),
        largest_difference=_finite(max(_difference(mine, theirs) for mine, theirs in pairs)),
        largest_output=_finite(max(_largest(mine) for mine, _ in pairs)),
    )


def _why_not_comparable(first: _Pass, other: _Pass) -> str:
    if [tensor.shape for tensor in first.batch] != [tensor.shape for tensor in other.batch]:
        return f"their batches differ: {_shapes(first.batch)} and {_shapes(other.batch)}"
    if not all(map(torch.equal, first.batch, other.batch)):
        return "their batches differ in their values, although they are made from the same seed"
    if not first.outputs or not other.outputs:
        return "a loss calls no module of its model, so there is no output to compare"
    if _kinds(first.outputs) != _kinds(other.outputs):
        return f"their outputs differ in shape or type: {_shapes(first.outputs)} and {_shapes(other.outputs)}"
    return ""


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)


def _difference(mine: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference between elements of two tensors.

    Equal infinities differ by 0. The result is nan if an element is a number in only one of the tensors.
    """
    return _largest(torch.where(mine == theirs, 0, mine.to(_wide(mine)) - theirs.to(_wide(theirs))))


def _largest(tensor: Tensor) -> float:
    return float(tensor.to(_wide(tensor)).abs().max()) if tensor.numel() else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _allowed(tensor: Tensor) -> float:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return _TOLERANCE.get(tensor.dtype, _TOLERANCE_OF_HALF) * _largest(tensor)
