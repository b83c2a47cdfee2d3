"""Peaks that a real run had, as `autofit.observed` notes them; the document is `autofit.observed-run/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.errors import UnknownGpuError, UsageError
from autofit.hardware.gpus import Gpu, find_gpu
from autofit.predict.intervals.observations import PeakKind
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.documents import parse_json, read_file
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import Device, Evidence

RUN_SCHEMA = "autofit.observed-run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeaks:
    """Peak memory of one process in bytes, each None if it is not known.

    Attributes:
        allocated_bytes: live blocks of PyTorch's allocator on the card.
        reserved_bytes: segments of that allocator.
        device_bytes: reserved memory and context, if the driver names the process.
        resident_bytes: resident set of the whole process, of a model on the CPU only.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """Peaks of a real run, with what is known of it; `to_json()` is the document `autofit.observed-run/1`.

    Attributes:
        workload: workload that was run, as `--model` takes it; None if nobody said.
        batch_size: samples of a batch; None if nobody said.
        knobs: knobs of the run that somebody said, by name.
        mode: `train`, or `infer` of a loop without an optimizer.
        num_steps: number of optimizer steps that ended; None without an optimizer.
        num_ranks: number of processes that trained together; the peaks are those of rank 0.
        device: card or processor that the model was on.
        evidence: `measured` on a card, `measured-cpu` on the CPU.
        peaks: peaks that the run had. One that is None was not above what this process had reached before.
        before: peaks that the process had reached before the run.
        evaluation: peaks until the end of the last evaluation, which `peaks` include; None if none was noted.
        torch: version of PyTorch.
    """

    workload: str | None = None
    batch_size: int | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    mode: str
    num_steps: int | None
    num_ranks: int = 1
    device: Device
    evidence: Evidence
    peaks: RunPeaks
    before: RunPeaks
    evaluation: RunPeaks | None = None
    torch: str

    def to_dict(self) -> dict[str, Any]:
        """Run as a dictionary of JSON's types: the content of `autofit.observed-run/1`."""
        return {"schema": RUN_SCHEMA, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @property
    def gpu(self) -> Gpu:
        """Card of the catalogue that the run was on; raises `UsageError` if it was on none of those."""
        if self.device.kind != GPU_KIND:
            raise UsageError(
                f"the run was on the CPU ({self.device.name}), whose resident set tells nothing of a card: "
                "observe a run on a GPU"
            )
        try:
            return find_gpu(self.device.name)
        except UnknownGpuError as error:
            raise UsageError(
                f"{self.device.name} is not in the catalogue: give --peak and --kind, without --gpu"
            ) from error

    @property
    def peak(self) -> tuple[PeakKind, int]:
        """Peak that tells the most of the run, with its kind: the reserved one, else the allocated one.

        Raises:
            UsageError: no step ended, several ranks trained, or no peak of the run is known.
        """
        if self.num_steps == 0:
            raise UsageError("no optimizer step ended in the run, so its peaks tell nothing: run some steps")
        if self.num_ranks > 1:
            raise UsageError(
                f"the peak is that of one of {self.num_ranks} ranks: give it to autofit.observe in Python, "
                "with peak_bytes, kind and parallel"
            )
        for kind in (PeakKind.RESERVED, PeakKind.ALLOCATED):
            num_bytes = getattr(self.peaks, f"{kind}_bytes")
            if num_bytes is not None:
                return kind, num_bytes
        raise UsageError(
            "the process had reached a larger peak before the run, which hides the peak of the run: begin "
            "`autofit.observed` earlier, or reset PyTorch's peak statistics before it "
            "(torch.cuda.reset_peak_memory_stats())"
        )


def observed_run_in(path: Path) -> ObservedRun | None:
    """Run that a file of `autofit.observed` holds; None if the file is none, or cannot be read.

    Raises:
        UsageError: the file is one, but damaged.
    """
    try:
        document = parse_json(read_file(path))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("schema") != RUN_SCHEMA:
        return None
    try:
        return from_plain(ObservedRun, document)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is no whole {RUN_SCHEMA}: run the loop again ({error})") from error
