"""Data of the figures of an answer, which the HTML page draws."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.timing import Timing
from autofit.explain.views.device_time import ClassTime, ModuleTime
from autofit.explain.views.timeline import Lane
from autofit.explain.views.workspaces import LayerWorkspaces
from autofit.questions.what_if import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    """Line of a figure: predicted peak memory against the batch size, for one setting of the knobs.

    Attributes:
        label: name of the line: the knob setting (precision, optimizer, …), or whether the line is of the
            likely or of the highest peak.
        batch_sizes: batch sizes at which the line has points, ascending.
        peaks_bytes: the peak at each of `batch_sizes`.
        largest_batch: largest batch size that fits the budget; None if unknown.
        first_failing_batch: next larger batch size, which does not fit; None if unknown.
    """

    label: str
    batch_sizes: tuple[int, ...]
    peaks_bytes: tuple[int, ...]
    largest_batch: int | None = None
    first_failing_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Point of a figure: the peak of a configuration that was really run.

    Attributes:
        label: knob setting of the run: precision, optimizer, ….
        verdict: how the run ended, such as `fits` or `oom`.
    """

    label: str
    batch_size: int
    peak_bytes: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Module of a model, with its memory alive at the peak, for a figure of the tree of modules.

    Attributes:
        path: path of the module from the model on, such as `features.0`; empty for the model itself.
        own_bytes: bytes alive at the peak that belong to the module but to none of its submodules.
    """

    path: str
    own_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Figure of peak memory against the batch size: predicted lines, measured points, and the budget.

    Attributes:
        budget_bytes: memory that may be used, drawn as a horizontal line; None for no such line.
    """

    lines: tuple[CurveLine, ...]
    measured: tuple[MeasuredPoint, ...] = ()
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMap:
    """Figure of predicted peaks over two axes: batch size, and size of a sample (such as tokens).

    Attributes:
        sizes: sizes of a sample, ascending.
        batch_sizes: batch sizes, ascending.
        peaks_bytes: a row for each of `batch_sizes`, with the peak for each of `sizes`.
        budget_bytes: memory that may be used; None if unknown.
    """

    sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    peaks_bytes: tuple[tuple[int, ...], ...]
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Figure of one device's memory over a step.

    Attributes:
        lane: memory of the device, from the first to the last moment.
        budget_bytes: memory that may be used, drawn as a line; None for no such line.
    """

    lane: Lane
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """Figure of the tree of modules by memory alive at the peak.

    Attributes:
        nodes: modules of the model, each after its parent.
    """

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Time of a step by class of kernels (such as convolutions) and by module, from which figures are drawn.

    Attributes:
        timing: predicted times of the step's operators.
        note: sentence on how the times are known, or on why there are no seconds.
        classes: time of each class of kernels, the longest first.
        modules: modules that take time, and their parents, each after its parent.
    """

    timing: Timing
    note: str
    classes: tuple[ClassTime, ...]
    modules: tuple[ModuleTime, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofline plot: classes of kernels under the card's limits of arithmetic and memory bandwidth."""

    times: Times


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """Figure of the tree of modules by their kernels' time on the GPU."""

    times: Times


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Figure of the workspaces (scratch memory) that cuDNN takes for each convolution layer."""

    layers: tuple[LayerWorkspaces, ...]


@dataclass(frozen=True, slots=True)
class Levers:
    """Figure of the memory saved by each single change of an option, such as `--precision amp-bf16`."""

    what_if: WhatIf


Drawing = Curves | SizeMap | StepMemory | ModuleMemory | Roofline | ModuleTimes | Workspaces | Levers
