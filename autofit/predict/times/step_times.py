"""Step times on a card, predicted from traces, with an interval.

`autofit_workers.replay.time` computes the work of a step and the time of kernels. This module applies it to
knob settings and cards of the catalogue, and scales the result by measured steps of the same workload.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.errors import UnknownGpuError
from autofit.explain.timing import GenerationTime, StepSeconds
from autofit.hardware.card import Card
from autofit.hardware.chips import properties_for
from autofit.hardware.gpus import find_gpu
from autofit.predict.times.measured_steps import MeasuredSteps, Scale
from autofit_workers.replay.curve.lines.step_lines import StepLines
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.time.collectives import network_of
from autofit_workers.replay.time.constants import constants
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.interval import HOST, Confidence, TimeResiduals, time_residuals
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.replay.time.lines import BatchDependentWorkError, EventWait, StepWork, WorkLines, work_of
from autofit_workers.replay.time.speeds import speeds_of
from autofit_workers.replay.time.step import StepClock, clocked, step_seconds, whole_clock
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES, split_conv_algo
from autofit_workers.spec.setup import ALONE, Parallel
from autofit_workers.spec.trace import Trace

_CUDNN_CHOOSES = CUDA_POLICIES[:2]  # policies that times were measured with
_MOST_NAMED = 3  # classes of kernels in a sentence
_MOST_STEPS = 128  # whose work is cached


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedStep:
    """Traced step with the predicted times of its operators on a device.

    Attributes:
        step: the operators of the step, with their sizes.
        clock: when each operator of the traced part is launched, starts and ends.
        costs: predicts the times of kernels on the device.
        conv_cost: time of convolutions, divided by that with cuDNN's own choice of kernels.
        late: share by which the step gets longer if collectives between ranks take
            `TimeResiduals.exchange_factor` times as long as predicted.
        first, last: the same of a text generation's first pass, for the prompts, and of its last one that was
            traced, each by itself; None for other steps, or without passes after the first.
    """

    step: StepWork
    clock: StepClock
    costs: Costs
    conv_cost: float
    late: float = 0.0
    first: StepClock | None = None
    last: StepClock | None = None

    @property
    def whole(self) -> StepClock:
        """Times of the step with the passes of a text generation that were not traced."""
        return whole_clock(self.step, self.clock, self.last if self.step.repeated else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Predicted time of a step.

    Attributes:
        likely_seconds: likely seconds of one step. If `stated` is None, they only serve to rank
            configurations.
        samples: number of samples in a step, of all ranks.
        confidence: how certain the time is.
        unscaled_seconds: the likely time without the correction by measured steps.
        scale: the correction by measured steps of the workload on the card; None if there are none.
        model: digest of the constants of the time model that the prediction was made with.
        links: the links between ranks that were assumed, in words; empty for a single process.
        first_seconds: of a text generation, the likely seconds to its first token, without the correction by
            measured steps; None for other steps.
        first_confidence, token_confidence: how certain these are, and the seconds of a later token.
    """

    likely_seconds: float
    samples: int
    confidence: Confidence
    unscaled_seconds: float
    scale: Scale | None = None
    model: str = ""
    links: str = ""
    first_seconds: float | None = None
    first_confidence: Confidence | None = None
    token_confidence: Confidence | None = None

    @property
    def stated(self) -> StepSeconds | None:
        """Step time in seconds with its interval; None if it is too uncertain to be shown."""
        return _stated(self.likely_seconds, self.confidence)

    def of_tokens(self, new_tokens: int, num_prompts: int) -> GenerationTime | None:
        """Times of a text generation's tokens; None for other steps.

        Args:
            new_tokens: tokens that the step generates after each prompt.
            num_prompts: number of prompts.
        """
        if self.first_seconds is None or self.first_confidence is None:
            return None
        first = self.first_seconds * self.likely_seconds / self.unscaled_seconds
        later = None
        if new_tokens > 1 and self.token_confidence is not None:
            later = _stated((self.likely_seconds - first) / (new_tokens - 1), self.token_confidence)
        return GenerationTime(
            first_token_seconds=_stated(first, self.first_confidence),
            token_seconds=later,
            tokens_per_second=None if later is None else num_prompts / later.likely,
        )

    @property
    def samples_per_second(self) -> float:
        """Likely throughput in samples per second."""
        return self.samples / self.likely_seconds

    def relative_to(self, other: StepTime) -> float:
        """Ratio of the step's likely time to that of another step."""
        return self.likely_seconds / other.likely_seconds

    @property
    def note(self) -> str:
        """Sentence on what the step time is based on, or on why no time is given."""
        return f"{self._rests_on}; {self.links}" if self.links else self._rests_on

    @property
    def _rests_on(self) -> str:
        if self.scale is not None and self.confidence.is_stated:
            return f"step time: {self.scale.in_words}"
        if self.confidence.is_stated:
            return f"step time: usually within {100 * self.confidence.sigma:.0f}% of a measured one"
        why = _unmeasured(self.confidence) or "measured times of such steps vary too much"
        return f"no step time is given, as {why}"


def _stated(likely: float, confidence: Confidence) -> StepSeconds | None:
    """Seconds with their intervals; None if they are too uncertain to be shown."""
    if not confidence.is_stated:
        return None
    low, high = confidence.ends(likely, 0.95)
    low_80, high_80 = confidence.ends(likely, 0.80)
    return StepSeconds(low=low, likely=likely, high=high, low_80=low_80, high_80=high_80)


def _unmeasured(confidence: Confidence) -> str:
    """Reason why a predicted time could not be checked by measurements; empty if it could."""
    if not confidence.is_card_measured:
        return "there are no measured times of this card to check it against"
    names = [_in_words(name) for name in confidence.unmeasured]
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more kinds of kernels"]
    *first, last = names or [""]
    named = f"{', '.join(first)} and {last}" if first else last
    return named and f"there are no measured times of {named} to check it against"


# Names of the kernel classes in texts.
_WORDS: Mapping[str, str] = {
    KernelClass.MATMUL: "matrix products",
    KernelClass.CONVOLUTION: "convolutions",
    KernelClass.GROUPED_CONVOLUTION: "grouped convolutions",
    KernelClass.DEPTHWISE_CONVOLUTION: "depthwise convolutions",
    KernelClass.ATTENTION: "attention",
    KernelClass.BATCH_NORM: "batch norm",
    KernelClass.LAYER_NORM: "layer norm",
    KernelClass.SOFTMAX: "softmax",
    KernelClass.POOL: "pooling",
    KernelClass.ELEMENTWISE: "element-wise operators",
    KernelClass.REDUCTION: "reductions",
    KernelClass.COPY: "copies",
    KernelClass.REORDER: "changes of memory format",
    KernelClass.INDEX: "indexing",
    KernelClass.OPTIMIZER: "optimizer steps",
    KernelClass.RECURRENT: "recurrent layers",
    KernelClass.TRANSFER: "copies between CPU and GPU",
    KernelClass.ALL_REDUCE: "all-reduces",
    KernelClass.GATHER: "all-gathers, reduce-scatters and all-to-alls",
    KernelClass.COLLECTIVE: "collectives over these links",
    KernelClass.OTHER: "operators that autofit does not know",
    HOST: "kernel launches",
}


def _in_words(name: str) -> str:
    """Readable name of a class of kernels, with the algorithm of a convolution."""
    of_class, _, conv_algo = name.partition(" ")
    return f"{_WORDS[of_class]} by {conv_algo}" if conv_algo else _WORDS[of_class]


def why_untimed(card: Card, parallel: Parallel = ALONE.parallel) -> str | None:
    """Reason why no step times are predicted on a card; None if they are predicted.

    Args:
        parallel: how ranks share the work, each rank on such a card.
    """
    if card.may_be:
        return "no card is named, and step times differ from card to card: name one with --gpu"
    if not Architecture.of(card.architecture).vendor.facts.knows_times:
        return "step times are predicted for NVIDIA cards only: name one with --gpu"
    if parallel and (why := _why_ranks_are_untimed(parallel)) is not None:
        return why
    try:
        gpu = find_gpu(card.name)
    except UnknownGpuError:
        gpu = None
    if gpu is None or gpu.architecture != card.architecture:
        return f"the catalogue does not have {card.name}, so its step times are not predicted"
    if parallel and network_of(gpu.name, gpu.architecture) is None:
        return f"what joins several of {card.name} is not known, so times of ranks are not predicted"
    return None


def _why_ranks_are_untimed(parallel: Parallel) -> str | None:
    """Reason why no times are predicted for a parallelism; None if they are."""
    if parallel.pipeline is not None:
        return "times of a pipeline are not predicted: how long its stages wait for each other is not known"
    if parallel.is_one_process:
        return "times of a device map are not predicted: how long cards wait for each other is not known"
    if parallel.offloads:
        return "times of what is offloaded are not predicted: the host's part of the step is not timed"
    if parallel.is_of_script:
        return (
            "times of a script's ranks are not predicted: which of them share a batch is not known; give "
            "--parallel to time them"
        )
    return None


class Timer:
    """Predicts the step times of one workload, from the operators in its traces.

    Args:
        residuals: past errors of predicted times; None for those shipped with autofit.
        measured: measured steps of the workload, which correct the predicted times; None for no correction.
    """

    def __init__(self, residuals: TimeResiduals | None = None, measured: MeasuredSteps | None = None) -> None:
        self._measured = measured or MeasuredSteps()
        self._residuals = residuals or time_residuals()
        self._lines: dict[StepLines, WorkLines | None] = {}
        self._works: dict[tuple[StepLines, int], StepWork | None] = {}
        self._times: dict[tuple[Any, ...], StepTime] = {}
        self._costs: dict[tuple[str, str, bool, bool], Costs] = {}

    def time(
        self,
        curve: PeakCurve,
        batch_size: int,
        knobs: Knobs,
        card: Card,
        *,
        conv_cost: Callable[[], float | None],
    ) -> StepTime | None:
        """Predicted time of a step on a card; None if it cannot be predicted.

        Args:
            curve: the step at any batch size, with its traces.
            knobs: the whole knob setting, including knobs that do not change the traces.
            card: a card for which `why_untimed` returns None.
            conv_cost: returns the time of all convolutions divided by that with cuDNN's own choice of
                kernels; None or infinite if it is unknown.

        Returns:
            The time; None if the traces do not list operators, or if `conv_cost` returns no usable ratio.
        """
        lines = curve.lines_at(batch_size)
        step = self._work(lines, batch_size)
        if step is None or (cost := _conv_cost(knobs, conv_cost)) is None:
            return None
        key = lines, batch_size, card.name, *_flags(knobs), cost, knobs.conv_algo
        if key not in self._times:
            parallel = Parallel.named(lines.trace.among_ranks)
            found = self._clocked(step, knobs, card, cost)
            self._times[key] = self._timed(found, batch_size, knobs, parallel)
        return self._scaled(self._times[key], knobs, card, lines.trace)

    def clocked(
        self,
        curve: PeakCurve,
        batch_size: int,
        knobs: Knobs,
        card: Card,
        *,
        conv_cost: Callable[[], float | None],
    ) -> ClockedStep | None:
        """Predicted time of each operator of a step; it is computed anew at each call.

        Arguments, and when it is None, are as for `time`.
        """
        step = self._work(curve.lines_at(batch_size), batch_size)
        if step is None or (cost := _conv_cost(knobs, conv_cost)) is None:
            return None
        return self._clocked(step, knobs, card, cost)

    def _scaled(self, time: StepTime, knobs: Knobs, card: Card, trace: Trace) -> StepTime:
        """Predicted time of a step, corrected by measured steps of the workload on the card, if any."""
        scale = self._measured.scale(knobs, card, trace.mode, time.model, trace.among_ranks)
        if scale is None:
            return time
        scaled = functools.partial(self._residuals.scaled, is_of_setting=scale.is_of_setting)
        return dataclasses.replace(
            time,
            likely_seconds=time.unscaled_seconds * scale.factor,
            confidence=scaled(time.confidence),
            first_confidence=None if time.first_confidence is None else scaled(time.first_confidence),
            token_confidence=None if time.token_confidence is None else scaled(time.token_confidence),
            scale=scale,
        )

    def _clocked(self, step: StepWork, knobs: Knobs, card: Card, conv_cost: float) -> ClockedStep:
        """Step with the predicted times of its operators on a card."""
        costs = self.costs(card, knobs)
        clock_at = functools.partial(
            clocked,
            step.calls,
            step.in_backward,
            costs,
            host_waits=step.host_waits,
            event_waits=step.event_waits,
            convolution_cost=conv_cost,
            host_cost=costs.host.generation if step.first_calls else 1.0,
        )
        clock = clock_at()
        late = 0.0
        if clock.exchange_seconds:
            late = clock_at(exchange_cost=self._residuals.exchange_factor(clock)).seconds / clock.seconds - 1
        first = last = None
        if step.first_calls:
            end = len(step.calls)
            first = _clocked_part(step, costs, conv_cost, (0, step.first_calls))
            start = step.first_calls if step.repeated is None else end - step.repeated.num_calls
            last = _clocked_part(step, costs, conv_cost, (start, end)) if start < end else None
        return ClockedStep(
            step=step, clock=clock, costs=costs, conv_cost=conv_cost, late=late, first=first, last=last
        )

    def _timed(self, found: ClockedStep, batch_size: int, knobs: Knobs, parallel: Parallel) -> StepTime:
        """Predicted time of a whole step, from the times of its operators."""
        family, _ = split_conv_algo(knobs.conv_algo)
        seconds, network = step_seconds(found.step, found.clock), found.costs.network
        of = functools.partial(
            self._residuals.of,
            speeds=found.costs.speeds,
            conv_algo="" if family in _CUDNN_CHOOSES else family,
            late=found.late,
        )
        return StepTime(
            likely_seconds=seconds,
            unscaled_seconds=seconds,
            model=found.costs.constants.digest,
            links="" if network is None or not parallel else network.in_words(found.step.groups),
            samples=batch_size * knobs.num_passes(batch_size) * parallel.num_replicas,
            confidence=of(found.whole),
            first_seconds=None if found.first is None else found.first.seconds,
            first_confidence=None if found.first is None else of(found.first),
            token_confidence=None if found.last is None else of(found.last),
        )

    def _work(self, lines: StepLines, batch_size: int) -> StepWork | None:
        """Operators of a step at a batch size; None if the traces do not list them."""
        key = lines, batch_size
        if key not in self._works:
            if len(self._works) >= _MOST_STEPS:
                for remembered in (self._lines, self._works, self._times, self._costs):
                    remembered.clear()
            found = self._found(lines, batch_size)
            if found is not None and lines.trace.num_ranks > 1 and not found.groups:
                found = None  # traces of earlier versions lack the collectives of ranks
            self._works[key] = found
        return self._works[key]

    def _found(self, lines: StepLines, batch_size: int) -> StepWork | None:
        if lines not in self._lines:
            self._lines[lines] = _lines_through(lines.traces)
        work = self._lines[lines]
        if work is not None:
            return work.at(batch_size) if work.course.calls else None
        traced = next((trace for trace in lines.traces if trace.batch_size == batch_size), None)
        return None if traced is None or not traced.work else work_of(traced)

    def costs(self, card: Card, knobs: Knobs) -> Costs:
        """Object that predicts the times of kernels on a card.

        A card of unknown speed gets the typical speed of its architecture.

        Args:
            knobs: knob setting, which says whether TF32 is used.

        Raises:
            UnknownGpuError: the catalogue has no card of the architecture.
        """
        allow_tf32, conv_tf32 = _flags(knobs)
        key = card.architecture, card.name, allow_tf32, conv_tf32
        if key not in self._costs:
            speeds = speeds_of(properties_for(card.architecture, card.name))
            self._costs[key] = Costs(
                speeds,
                constants(),
                allow_tf32=allow_tf32,
                conv_tf32=conv_tf32,
                network=network_of(speeds.name, speeds.architecture),
            )
        return self._costs[key]


def _clocked_part(step: StepWork, costs: Costs, conv_cost: float, part: tuple[int, int]) -> StepClock:
    """Predicted times of some passes of a text generation by themselves.

    Args:
        part: the numbers of their first call, and of the first one after them.
    """
    start, stop = part
    return clocked(
        step.calls[start:stop],
        step.in_backward[start:stop],
        costs,
        host_waits=[wait - start for wait in step.host_waits if start <= wait < stop],
        event_waits=[
            EventWait(wait.number - start, wait.call - start)
            for wait in step.event_waits
            if start <= wait.call and wait.number < stop
        ],
        convolution_cost=conv_cost,
        host_cost=costs.host.generation,
    )


def _conv_cost(knobs: Knobs, conv_cost: Callable[[], float | None]) -> float | None:
    """Time of convolutions divided by that with cuDNN's own choice; None if it is unknown or infinite.

    Args:
        conv_cost: returns the ratio; called only for algorithms other than cuDNN's.
    """
    cost = 1.0 if knobs.conv_algo in _CUDNN_CHOOSES else conv_cost()
    return None if cost is None or math.isinf(cost) else cost


def _flags(knobs: Knobs) -> tuple[bool, bool]:
    """Two flags: whether matrix products, and whether convolutions, compute fp32 as TF32 on tensor cores."""
    return knobs.precision == "tf32", knobs.tf32_in_convolutions


def _lines_through(traces: tuple[Trace, ...]) -> WorkLines | None:
    """Operators of a step at any batch size, from traces at a few sizes.

    It is None if there are no traces, or if these differ in more than the sizes of operators.
    """
    try:
        return WorkLines.through(traces) if traces else None
    except BatchDependentWorkError:
        return None
