"""The estimate of one configuration, and its JSON document `autofit.estimate/1`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from autofit.predict.confidence import Calibration
from workers.knobs import Knobs
from workers.protocol import Device, Evidence

ESTIMATE_SCHEMA = "autofit.estimate/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The reserved peak with 95 % confidence: low, likely, high; see `autofit.predict.confidence`."""

    low_bytes: int
    likely_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSpan:
    """The largest workspace of any one convolution call, in bytes: at least, likely, at most.

    Calls follow each other, so that no two of them are held at a time.
    """

    low: int
    likely: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Bytes alive at the allocated peak, by what they hold; they add up to it.

    Attributes:
        parameters: parameters and buffers.
        gradients: of parameters, and the buckets that ranks reduce them in; those of activations pass by
            and count as `other`.
        activations: what forward and loss allocated.
        workspace: what convolutions use beside their outputs.
        other: temporaries, and the part of blocks that no request fills.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    inputs: int
    workspace: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTensor:
    """Memory alive at the peak, by where it was allocated.

    Attributes:
        module: path of the `nn.Module`; empty outside any.
        source: the user's line, `file:line:function`.
    """

    module: str
    operator: str
    source: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one configuration is predicted to need on the GPU.

    Attributes:
        peak_allocated_bytes: live blocks at their peak.
        peak_reserved_bytes: the allocator's segments, the likely one of `interval`.
        device_peak_bytes: what nvidia-smi would show for the process: reserved and context.
        interval: the reserved peak over what convolution workspaces may come to and what real runs
            of such models left over.
        workspace_bytes: what convolution workspaces may come to; None where they have one size.
        calibration: the real runs that the interval rests on, or that there are none.
        device: the card that was assumed.
        architectures: those that the interval spans, the likely one first; of a named card its own.
        batch_kind: `typical` or `worst`, where the workload makes both.
        num_ranks: it is one of so many ranks of `DistributedDataParallel`, each of which takes a batch; 1 for
            none.
        workspace_source: where the workspaces of convolutions are from.
        largest: the largest holders of memory at the allocated peak.
        trace_digest: names the trace the estimate was made from.
    """

    workload: str
    batch_size: int
    knobs: Knobs
    mode: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_peak_bytes: int
    context_bytes: int
    breakdown: Breakdown
    interval: Interval
    evidence: Evidence
    device: Device
    calibration: Calibration
    workspace_bytes: WorkspaceSpan | None = None
    batch_kind: str | None = None
    num_ranks: int = 1
    workspace_source: str = ""
    largest: tuple[LargeTensor, ...] = ()
    architectures: tuple[str, ...] = ()
    trace_digest: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def samples_per_step(self) -> int:
        """See `Knobs.samples_per_step`."""
        return self.knobs.samples_per_step(self.batch_size, self.num_ranks)

    def to_dict(self) -> dict[str, Any]:
        """The document's content, ready for `json`."""
        return {
            "schema": ESTIMATE_SCHEMA,
            **dataclasses.asdict(self),
            "samples_per_step": self.samples_per_step,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)
