"""Compares forward passes of several workloads; the JSON document is `autofit.compare/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import UsageError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.identity import versions
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import local_predictor
from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, WorkloadRef
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import FORWARD_END, Trace
from autofit_workers.trials.door import ComparisonFailedError, OutputComparison, compare_outputs

# Seconds for one pass of each on the CPU; if they take longer, the comparison has no outputs.
_DEADLINE_SECONDS = 600.0

COMPARE_SCHEMA = "autofit.compare/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """Tensor of a forward pass, as a row of the comparison's table.

    Attributes:
        name: see `autofit_workers.spec.trace.ListedTensor`.
        role: `parameter`, `buffer`, `input` or `output`.
        num_bytes: bytes by the tensor's shape.
        storage_bytes: bytes of the storage that it allocated; 0 for a view.
        view_of: name of the tensor whose storage it uses; None for one with its own storage.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    num_elements: int
    element_bytes: int
    num_bytes: int
    storage_bytes: int
    view_of: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """Tensors and predicted peaks of one forward pass in inference.

    Attributes:
        tensors: parameters, buffers, the batch and outputs of operators, the most elements first.
        peak_allocated_bytes, peak_reserved_bytes: predicted peaks of the pass without the loss.
        workspace_bytes: part of the allocated peak that operators take as scratch memory, besides their
            outputs.
    """

    workload: str
    tensors: tuple[TensorRow, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    workspace_bytes: int

    @classmethod
    def of(cls, trace: Trace, estimate: Estimate) -> Self:
        """Record of a forward pass, built from its predicted peaks and a trace that lists its tensors."""
        return cls(
            workload=trace.workload,
            tensors=tuple(sorted(_rows(trace), key=lambda row: (-row.num_elements, row.name))),
            peak_allocated_bytes=estimate.peak_allocated_bytes,
            peak_reserved_bytes=estimate.peak_reserved_bytes,
            workspace_bytes=estimate.breakdown.workspace,
        )

    @property
    def views(self) -> tuple[TensorRow, ...]:
        return tuple(row for row in self.tensors if row.view_of is not None)

    @property
    def nominal_bytes(self) -> int:
        """Total bytes of all tensors by their shapes, as if no two tensors shared a storage."""
        return sum(row.num_bytes for row in self.tensors)

    @property
    def storage_bytes(self) -> int:
        """Total bytes of distinct storages: the memory of all tensors if none were freed."""
        return sum(row.storage_bytes for row in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "nominal_bytes": self.nominal_bytes,
            "storage_bytes": self.storage_bytes,
            "num_views": len(self.views),
        }


def _rows(trace: Trace) -> Iterable[TensorRow]:
    """Yields a row for each tensor of a trace, with the tensor whose storage it shares, if any."""
    owners: dict[int, str] = {}
    for tensor in trace.tensors:
        owner = owners.setdefault(tensor.storage, tensor.name)
        is_owner = owner == tensor.name
        yield TensorRow(
            name=tensor.name,
            role=tensor.role,
            shape=tensor.shape,
            dtype=tensor.dtype,
            num_elements=tensor.num_elements,
            element_bytes=tensor.element_bytes,
            num_bytes=tensor.num_bytes,
            storage_bytes=trace.allocations[tensor.storage].num_bytes if is_owner else 0,
            view_of=None if is_owner else owner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of several workloads' forward passes at one batch size.

    Attributes:
        device: card that the peaks are predicted for.
        outputs: numerical comparison of the first workload's outputs with those of each other workload.
    """

    batch_size: int
    device: Device
    passes: tuple[ForwardPass, ...]
    outputs: tuple[OutputComparison, ...]
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Comparison as a dictionary of JSON's types: the content of the document `autofit.compare/1`."""
        return {
            "schema": COMPARE_SCHEMA,
            "batch_size": self.batch_size,
            "mode": "infer",
            "device": dataclasses.asdict(self.device),
            "models": [each.to_dict() for each in self.passes],
            "outputs": [dataclasses.asdict(each) for each in self.outputs],
            "versions": self.versions,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def compare_workloads(
    workloads: Sequence[WorkloadRef],
    *,
    batch_size: int,
    card: Card,
    seq_len: int | None = None,
    setup: Setup = ALONE,
    emit: EventSink = ignore,
) -> Comparison:
    """Compares workloads' forward passes in inference; the outputs are really computed, on the CPU.

    Args:
        card: card that the peaks are predicted for.
        seq_len: size of a sample, such as tokens or pixels of a side; None for the workloads' own.
        setup: what the models may do, such as run code from a model hub; its mode is ignored.

    Raises:
        UsageError: there are fewer than two workloads.
        WorkloadFailedError: one of them fails, or cannot be predicted.
    """
    if len(workloads) < 2:
        raise UsageError("compare needs at least two models: name another one")
    passes, knobs = [], Knobs(seq_len=seq_len)
    inference = dataclasses.replace(setup, mode="infer")
    for workload in workloads:
        predictor = local_predictor(workload, setup=inference, emit=emit, with_tensors=True)
        trace = predictor.trace(knobs, batch_size)
        curve = predictor.curve_of(trace.until(FORWARD_END), knobs, card)
        passes.append(ForwardPass.of(trace, curve(batch_size)))
    emit(Progress(stage="running the models on the CPU"))
    return Comparison(
        batch_size=batch_size,
        device=Device(kind=GPU_KIND, name=card.name),
        passes=tuple(passes),
        outputs=_outputs(workloads, batch_size, seq_len, Permissions.of(setup)),
        versions=versions(),
    )


def _outputs(
    workloads: Sequence[WorkloadRef], batch_size: int, seq_len: int | None, permissions: Permissions
) -> tuple[OutputComparison, ...]:
    """Compares the models' outputs; holds a reason instead if their process dies or takes too long."""
    try:
        return compare_outputs(
            workloads,
            batch_size=batch_size,
            seq_len=seq_len,
            permissions=permissions,
            deadline_seconds=_DEADLINE_SECONDS,
        )
    except ComparisonFailedError as failed:
        if failed.error is not None:
            raise WorkloadFailedError(str(failed), traceback=failed.error.traceback) from failed
        return tuple(
            OutputComparison(workload=workload.name, reason=str(failed)) for workload in workloads[1:]
        )
