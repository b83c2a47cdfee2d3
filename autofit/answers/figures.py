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
    """Curve of predicted peaks over the batch size, as a line of a figure.

    Attributes:
        label: the knob setting, or the level of the prediction.
        peaks_bytes: the peak at each of `batch_sizes`.
        largest_batch, first_failing_batch: largest batch that fits and next that fails; None if unknown.
    """

    label: str
    batch_sizes: tuple[int, ...]
    peaks_bytes: tuple[int, ...]
    largest_batch: int | None = None
    first_failing_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Peak of a trial that was run, as a point of a figure.

    Attributes:
        label: the trial's knob setting.
        verdict: how the trial ended.
    """

    label: str
    batch_size: int
    peak_bytes: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Module in a tree of modules, with its memory alive at the peak.

    Attributes:
        path: the module's path, from the model on; empty for the model.
        own_bytes: bytes alive at the peak that belong to no child.
    """

    path: str
    own_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Figure of peaks over the batch size, predicted and measured, with the budget where there is one."""

    lines: tuple[CurveLine, ...]
    measured: tuple[MeasuredPoint, ...] = ()
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMap:
    """Figure of predicted peaks of one knob setting by batch size and size of a sample.

    Attributes:
        peaks_bytes: for each of `batch_sizes` the peaks of all `sizes`.
    """

    sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    peaks_bytes: tuple[tuple[int, ...], ...]
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Figure of one device's memory over a step."""

    lane: Lane
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """Figure of the tree of modules by memory at the peak; each module comes after its parent."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Time of a step by classes of kernels and by modules.

    Attributes:
        timing: times of the step's operators.
        note: sentence on the basis of the times, or on why there are no seconds.
        classes: classes of kernels, the one that takes most time first.
        modules: modules that take time, and their parents, each after its parent.
    """

    timing: Timing
    note: str
    classes: tuple[ClassTime, ...]
    modules: tuple[ModuleTime, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Figure of classes of kernels under the card's limits of arithmetic and bandwidth."""

    times: Times


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """Figure of the tree of modules by their time on the device."""

    times: Times


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Figure of the workspaces of convolution layers."""

    layers: tuple[LayerWorkspaces, ...]


@dataclass(frozen=True, slots=True)
class Levers:
    """Figure of the memory that each changed knob or option would save."""

    what_if: WhatIf


Drawing = Curves | SizeMap | StepMemory | ModuleMemory | Roofline | ModuleTimes | Workspaces | Levers
