"""What others say of a run, on the fake tensors that its steps are traced with.

    PyTorch's MemTracker          the live storages, as `torch.distributed._tools.mem_tracker` counts them
    accelerate estimate-memory    its own code, told how many weights the model has and their type
    16 bytes a parameter          of those that are trained; the others as large as they are

The tracker is told of what is alive before each step, and runs in the step; in a script, from its start. It
counts by modules too, which it can for one step alone: that is left out. The rules know weights alone, so
they say one number of a run.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.mem_tracker import MemTracker

from autofit_workers.tracing.fake.fake_gpu import FakeGpuMode
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.workload.libraries.importing import imported
from tests.bench.language.runs import ScriptRun, Traced

TRACKER, ACCELERATE, SIXTEEN = "PyTorch's MemTracker", "accelerate estimate-memory", "16 bytes a parameter"
# Where the tracker stands when these are measured; of all else, its peak.
_AT_MARKS = {
    "allocated after the model": "step 2 forward",
    "allocated after forward": "step 2 backward",
    "allocated after backward": "step 2 optimizer",
    "allocated after a step": "end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Those of a model: how many, of how many bytes, and which are trained."""

    num: int = 0
    num_bytes: int = 0
    num_trained: int = 0
    frozen_bytes: int = 0


class _NoModules(nullcontext[None]):
    """Follows none: the tracker's own hooks keep a step's graph alive, and want each module to run once."""

    is_bw = False
    parents = frozenset[str]()

    def register_user_hooks(self, *_hooks: object) -> None: ...

    def clear_user_hooks(self) -> None: ...


class _Totals(MemTracker):
    """The tracker without its numbers of single modules."""

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker: Any = _NoModules()

    def on_card(self, kind: str) -> int:
        totals = self.get_tracker_snapshot(kind).items()
        return sum(each["Total"] for device, each in totals if device.type == "cuda")


class _Counts:
    def __init__(self) -> None:
        gc.collect()
        self._of_others = _on_card()  # runs before; they stay alive, so that no other takes their place
        self._of_others_ids = set(map(id, self._of_others))
        self.tracker = _Totals()
        self.weights = _Weights()
        self.peak_bytes = 0
        self.at_marks: dict[str, int] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        gc.collect()
        self.tracker.track_external(*self._own())
        with self.tracker:
            yield
            self.mark("end")

    def mark(self, name: str) -> None:
        self.peak_bytes = max(self.peak_bytes, self.tracker.on_card("peak"))
        self.at_marks[name] = self.tracker.on_card("current")
        own = [each for each in self._own() if isinstance(each, nn.Parameter)]
        self.weights = max(self.weights, _weights_of(own), key=lambda weights: weights.num)

    def _own(self) -> list[Any]:
        return [each for each in _on_card() if id(each) not in self._of_others_ids]


def said_by_others(run: Traced) -> Mapping[str, Mapping[str, int]]:
    """Bytes of each quantity of a run, by the name of who says so. Traces the run."""
    counts = _Counts()
    with _counted_in_scripts(counts) if isinstance(run, ScriptRun) else _counted_in_steps(counts):
        is_training = run.trace().mode == "train"
    weights = counts.weights
    estimate: Any = imported("accelerate.commands.estimate", ACCELERATE)
    kind = "float32" if weights.num_bytes >= 4 * weights.num else "bfloat16"
    rules = {
        ACCELERATE: max(estimate.estimate_training_usage(4 * weights.num, kind).values()),
        SIXTEEN: weights.frozen_bytes + 16 * weights.num_trained,
    }
    if not is_training:  # of which both say the weights alone
        rules = dict.fromkeys(rules, weights.num_bytes)
    return {
        TRACKER: {
            name: counts.at_marks.get(_AT_MARKS.get(name, ""), counts.peak_bytes) for name in run.measured
        },
        **{rule: dict.fromkeys(run.measured, num_bytes) for rule, num_bytes in rules.items()},
    }


@contextmanager
def _counted_in_steps(counts: _Counts) -> Iterator[None]:
    with (
        patch.object(FakeGpuMode, "in_step", lambda _mode: counts.counting()),
        _marked(counts),
    ):
        yield


@contextmanager
def _counted_in_scripts(counts: _Counts) -> Iterator[None]:
    enter, leave = FakeGpuMode.__enter__, FakeGpuMode.__exit__

    def entered(mode: FakeGpuMode) -> Any:
        inner = enter(mode)
        counts.tracker.__enter__()
        return inner

    def left(mode: FakeGpuMode, *exception: Any) -> None:
        counts.mark("end")
        counts.tracker.__exit__(*exception)
        leave(mode, *exception)

    with (
        patch.object(FakeGpuMode, "__enter__", entered),
        patch.object(FakeGpuMode, "__exit__", left),
        _marked(counts),
    ):
        yield


@contextmanager
def _marked(counts: _Counts) -> Iterator[None]:
    mark = Recorder.mark

    def marked(recorder: Recorder, name: str, position: int | None = None) -> None:
        mark(recorder, name, position)
        counts.mark(name)

    with patch.object(Recorder, "mark", marked):
        yield


def _on_card() -> list[Any]:
    return [each for each in gc.get_objects() if issubclass(type(each), FakeTensor) and each.is_cuda]


def _weights_of(weights: Sequence[Any]) -> _Weights:
    trained = [each for each in weights if each.requires_grad]
    num_bytes, trained_bytes = (sum(each.nbytes for each in some) for some in (weights, trained))
    return _Weights(
        num=sum(map(_num_of, weights)),
        num_bytes=num_bytes,
        num_trained=sum(map(_num_of, trained)),
        frozen_bytes=num_bytes - trained_bytes,
    )


def _num_of(weight: Any) -> int:
    """How many numbers a weight stands for; bitsandbytes packs two into one."""
    state = getattr(weight, "quant_state", None)
    return math.prod(getattr(state, "shape", None) or weight.shape)
