"""What a table of real measurements says: its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.tables.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        groups: wider classes than the family that are summed up too.
        gpu: key of the card in the catalogue.
        total_bytes: memory of the card, as CUDA reports it.
        context_bytes: what is assumed to be taken outside the allocator, where a label is scored.
        torch_release: of the PyTorch that ran, such as `2.6`; empty where nobody says.
        conv_algo: the convolution policy, of `autofit_workers.spec.knobs.conv_algo.CONV_ALGOS`.
        measured_bytes: the peak; None where only `ran` is known.
        measured_from: the mark of the trace (`Trace.marks`) at which the measurement began: what was
            reserved by then is not in it; empty where the peak is of everything.
        ran: whether this batch size ran; None where the table does not say.
        failed_batch_size: the next size that was tried, which did not run.
        first_tried: the size with which a process began that went down a ladder of sizes until this one
            ran (`tests.bench.ladder`): what the others left behind counts for whether a size runs. What is
            safe is said for a process that tried nothing before, as users' are.
        or_else: what may have run instead of the setting, where the table does not say which of both did.
        others: bytes that other predictors said, by their names; None where one gave no answer.
    """

    table: str
    model: str
    family: str
    setting: Setting
    batch_size: int
    gpu: str
    architecture: str
    total_bytes: int
    context_bytes: int
    torch_release: str = ""
    conv_algo: str = "cudnn"
    groups: tuple[str, ...] = ()
    measured_bytes: int | None = None
    measured_from: str = ""
    ran: bool | None = None
    failed_batch_size: int | None = None
    first_tried: int | None = None
    or_else: Setting | None = None
    others: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def limit_bytes(self) -> int:
        """What the allocator could reserve."""
        return self.total_bytes - self.context_bytes

    @property
    def name(self) -> str:
        setting = self.setting
        parts = [self.table, self.model, setting.optimizer, setting.memory_format, self.gpu]
        return " ".join([*parts, f"batch {self.batch_size}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of measurements.

    Attributes:
        read: its rows from the folder of the tables.
        has_constant: whether every measured peak holds an unknown constant (context, monitoring).
    """

    name: str
    file: str
    read: Callable[[Path], list[Row]]
    has_constant: bool = False
