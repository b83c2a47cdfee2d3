"""Content of an HTML report, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.timing import Timing
from autofit.explain.views.device_time import ClassTime, ModuleTime
from autofit.explain.views.timeline import Lane
from autofit.explain.views.workspaces import LayerWorkspaces
from autofit.questions.what_if import WhatIf
from autofit_workers.spec.trace import Category

CATEGORY_NAMES = {
    Category.PARAMETER: "parameters",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.GRADIENT: "gradients",
    Category.INPUT: "inputs",
    Category.ACTIVATION: "activations",
    Category.WORKSPACE: "workspace",
    Category.OTHER: "temporaries, other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Labelled number beside the answer of a report.

    Attributes:
        note: what the number is, or where it comes from.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    """Curve of predicted peaks over the batch size, as a line of a figure.

    Attributes:
        label: the knob setting, or the level of the prediction.
        peaks_bytes: the peak at each of `batch_sizes`.
        largest_batch, first_failing_batch: the boundary; None where there is none.
    """

    label: str
    batch_sizes: tuple[int, ...]
    peaks_bytes: tuple[int, ...]
    largest_batch: int | None = None
    first_failing_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMap:
    """Predicted peaks of one knob setting by batch size and size of a sample.

    Attributes:
        peaks_bytes: for each of `batch_sizes` the peaks of all `sizes`.
    """

    sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    peaks_bytes: tuple[tuple[int, ...], ...]


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
class Table:
    """Table of a report, with cells of text.

    Attributes:
        numeric: the columns that are numbers, which stand to the right.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


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
class Times:
    """Time of a step by classes of kernels and by modules.

    Attributes:
        timing: the timing of the step.
        note: what its times rest on, or why no seconds are said, in a sentence.
        classes: classes of kernels, the one that takes most time first.
        modules: modules that take time and those around them, each after its parent.
    """

    timing: Timing
    note: str
    classes: tuple[ClassTime, ...]
    modules: tuple[ModuleTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of an HTML report, with all of its sections.

    Attributes:
        answer: sentences, the answer first.
        budget_bytes: what the allocator may reserve; None where there is no budget.
        configuration: the configuration of `lane`, `breakdown`, `nodes`, `times` and `workspaces`, "batch 112
            with cudnn"; empty where there are none.
        lane: the memory over the step of the allocated peak.
        remedies: where it does not fit, what makes it fit, in sentences.
        nodes: the tree of modules, each after its parent.
        times: the times of the step; None where none are predicted.
        made: versions and the like, for the foot of the page.
    """

    title: str
    answer: tuple[str, ...]
    facts: tuple[Fact, ...]
    configuration: str = ""
    breakdown: Table | None = None
    budget_bytes: int | None = None
    lane: Lane | None = None
    curves: tuple[CurveLine, ...] = ()
    measured: tuple[MeasuredPoint, ...] = ()
    size_map: SizeMap | None = None
    parallels: Table | None = None
    frontier: Table | None = None
    remedies: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    times: Times | None = None
    workspaces: tuple[LayerWorkspaces, ...] = ()
    what_if: WhatIf | None = None
    notes: tuple[str, ...] = ()
    made: str = ""
