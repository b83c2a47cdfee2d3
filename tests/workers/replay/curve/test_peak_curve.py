"""The peak curve, from traces at three sizes, against a trace at the size that is asked for."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.allocator import AllocatorSettings
from autofit_workers.replay.allocator import replay as allocator_replay
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.lines.step_lines import BatchDependentEventsError, StepLines
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.peak_estimate import PeakEstimate
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.trace import Category
from autofit_workers.spec.workloads.builtins import BUILTINS

TRACED = (4, 6, 9)
ASKED = (2, 3, 8, 16, 33)
ASKED_OF_BUILTINS = (3, 33)  # each takes seconds to trace
POLICIES = ("cudnn", "cudnn-benchmark", "native")

SMALL = (
    "small:perceptron",
    "small:convolutional",
    "small:transposed",
    "small:attention",
    "small:masked_attention",
    "small:odd_attention",
    "small:residual",
    "small:dropout",
    "small:all_pairs",
    "small:language",
    "small:lstm",
    "small:batch_first",
    "small:deep_lstm",
)


@pytest.fixture(scope="module")
def curve_of(trace_of):
    """Peak curves, made once each."""
    curves: dict[str, PeakCurve] = {}

    def make(workload: str) -> PeakCurve:
        if workload not in curves:
            curves[workload] = PeakCurve.through([trace_of(workload, batch_size) for batch_size in TRACED])
        return curves[workload]

    return make


def told(estimate: PeakEstimate) -> tuple[object, ...]:
    """All of an estimate; what is alive by its origin, for the shapes are those of the first trace."""
    live = [(one.allocation.operator, one.allocation.module, one.num_bytes) for one in estimate.live]
    return dataclasses.replace(estimate, live=()), live


@pytest.mark.no_cover  # it would take twice as long, and others reach the same lines
@pytest.mark.parametrize("workload", [*BUILTINS, *SMALL])
def test_a_curve_gives_every_byte_that_a_trace_at_that_size_gives(workload, curve_of, trace_of):
    curve = curve_of(workload)
    for batch_size in ASKED_OF_BUILTINS if workload in BUILTINS else ASKED:
        concrete = PeakCurve.through([trace_of(workload, batch_size)])
        for conv_algo in POLICIES:
            conditions = Conditions(conv_algo=conv_algo)
            on_card = curve.on_card(batch_size, conditions)
            known = concrete.on_card(batch_size, conditions)
            for level in Level:
                assert on_card.by_first_source.sizes(level) == known.by_first_source.sizes(level)
            assert told(on_card.estimate()) == told(known.estimate())
        assert curve.at(batch_size).lower_bound_bytes == concrete.at(batch_size).lower_bound_bytes


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "amp-bf16"},
        {"precision": "amp-fp16", "optimizer": "adam", "optimizer_impl": "fused"},
        {"precision": "bf16", "memory_format": "channels_last", "set_to_none": False},
        {"mode": "infer"},
        {"optimizer": "adam"},
    ],
)
@pytest.mark.parametrize(
    "workload", ["small:convolutional", "small:attention", "small:lstm", "davenet-audio"]
)
def test_a_curve_is_as_exact_under_other_knobs(workload, settings, trace_of):
    curve = PeakCurve.through([trace_of(workload, batch_size, **settings) for batch_size in TRACED])
    for batch_size in (3, 20):
        concrete = PeakCurve.through([trace_of(workload, batch_size, **settings)])
        for conv_algo in POLICIES:
            conditions = Conditions(conv_algo=conv_algo)
            assert told(curve.on_card(batch_size, conditions).estimate()) == told(
                concrete.on_card(batch_size, conditions).estimate()
            )


@pytest.mark.parametrize("workload", ["small:sample_by_sample", "small:accumulating"])
def test_steps_whose_events_depend_on_the_batch_make_no_curve(workload, trace_of):
    with pytest.raises(BatchDependentEventsError, match="batch 4 and 6"):
        PeakCurve.through([trace_of(workload, batch_size) for batch_size in TRACED])


def test_such_steps_are_traced_at_every_size_that_is_asked_for_once(trace_of):
    asked: list[int] = []

    def trace_at(batch_size: int):
        asked.append(batch_size)
        return trace_of("small:sample_by_sample", batch_size)

    curve = PeakCurve.traced_anew(trace_at)
    peaks = [curve.on_card(batch_size, Conditions()).estimate().allocated_bytes for batch_size in (2, 7, 7)]
    assert asked == [2, 7]
    assert peaks[0] < peaks[1] == peaks[2]


def test_sizes_that_are_no_polynomial_make_no_curve(trace_of):
    traces = [trace_of("small:perceptron", batch_size) for batch_size in TRACED]
    first, *others = traces[2].allocations[4:]
    odd = dataclasses.replace(first, num_bytes=first.num_bytes + 4)
    traces[2] = dataclasses.replace(traces[2], allocations=(*traces[2].allocations[:4], odd, *others))
    with pytest.raises(BatchDependentEventsError, match="is not a polynomial"):
        PeakCurve.through(traces)


TRAINED = {"precision": "bf16", "optimizer": "adamw"}


@pytest.mark.no_cover  # seconds for each
@pytest.mark.parametrize(
    ("workload", "settings"),
    [("small:batch_first", TRAINED), ("gpt2", {**TRAINED, "checkpointing": "blocks"})],
)
def test_a_step_that_differs_at_one_sample_has_the_peaks_of_whole_traces_at_every_size(
    workload, settings, trace_of
):
    """Of one sample a slice is contiguous, and is not copied."""
    several = StepLines.through([trace_of(workload, batch_size, **settings) for batch_size in TRACED])
    single = trace_of(workload, 1, **settings)
    assert not several.agrees_with(single)
    assert several.agrees_with(trace_of(workload, 2, **settings))
    curve = PeakCurve.in_two(StepLines.through([single]), several, start=2)
    assert not curve.needs_traces
    for batch_size in (1, 2, 3, 12, 33):
        whole = PeakCurve.through([trace_of(workload, batch_size, **settings)])
        found, known = (each.on_card(batch_size, Conditions()) for each in (curve, whole))
        assert told(found.estimate()) == told(known.estimate())


def test_a_curve_of_one_trace_answers_at_that_size_alone(trace_of):
    trace = trace_of("small:perceptron", 4)
    curve = PeakCurve.through([trace])
    assert curve.at(4).trace is curve.trace is trace
    with pytest.raises(AssertionError):
        curve.at(5)


def test_a_curve_agrees_with_traces_up_to_where_the_step_changes(curve_of, trace_of):
    curve = curve_of("small:branching_at_64")
    agrees = [curve.lines.agrees_with(trace_of("small:branching_at_64", size)) for size in (16, 63, 64, 100)]
    assert agrees == [True, True, False, False]


def test_a_curve_disagrees_with_a_trace_whose_tensors_have_other_sizes(curve_of, trace_of):
    trace = trace_of("small:perceptron", 16)
    larger = dataclasses.replace(trace.allocations[0], num_bytes=trace.allocations[0].num_bytes + 512)
    changed = dataclasses.replace(trace, allocations=(larger, *trace.allocations[1:]))
    assert curve_of("small:perceptron").lines.agrees_with(trace)
    assert not curve_of("small:perceptron").lines.agrees_with(changed)


@pytest.mark.parametrize("workload", ["small:convolutional", "small:attention", "davenet-audio"])
def test_the_breakdown_adds_up_to_the_allocated_peak(workload, curve_of):
    on_card = curve_of(workload).on_card(50, Conditions())
    estimate = on_card.estimate()
    assert sum(estimate.breakdown.values()) == estimate.allocated_bytes
    live = on_card.estimate().live
    assert [item.num_bytes for item in live] == sorted((item.num_bytes for item in live), reverse=True)
    by_category = sum(item.num_bytes for item in live if item.allocation.category is Category.PARAMETER)
    assert estimate.breakdown[Category.PARAMETER] == by_category


def test_the_likely_peak_lies_between_low_and_high(curve_of):
    estimate = curve_of("vgg16").on_card(40, Conditions(conv_algo="cudnn-benchmark")).estimate()
    assert estimate.low_bytes <= estimate.reserved_bytes <= estimate.high_bytes
    assert estimate.low_bytes < estimate.high_bytes  # its workspaces are a matter of opinion
    assert estimate.allocated_bytes <= estimate.reserved_bytes


def test_a_workload_without_convolutions_has_one_answer(curve_of):
    estimate = curve_of("small:perceptron").on_card(5000, Conditions()).estimate()
    assert estimate.low_bytes == estimate.reserved_bytes == estimate.high_bytes


def test_native_convolutions_need_a_workspace_that_does_not_grow_with_the_batch(curve_of):
    curve = curve_of("small:convolutional")
    native = Conditions(conv_algo="native")
    likely = [curve.on_card(b, native).by_first_source.sizes(Level.LIKELY) for b in (10, 1000)]
    workspaces = [
        {size for size, a in zip(sizes, curve.trace.allocations, strict=True) if a.convolution is not None}
        for sizes in likely
    ]
    columns = 4 * (3 * 9) * (10 * 12), 4 * (8 * 9) * (2 * 2)
    assert workspaces == [set(columns), set(columns)]


def test_the_high_end_stops_counting_once_the_budget_is_exceeded(curve_of):
    on_card = curve_of("davenet-audio").on_card(200, Conditions())
    exact = on_card.reserved_bytes()
    budget_bytes = exact // 2
    stopped = on_card.reserved_bytes(stop_above_bytes=budget_bytes)
    assert budget_bytes < stopped <= exact
    assert on_card.reserved_bytes(stop_above_bytes=exact) == exact


@pytest.mark.parametrize("conv_algo", POLICIES)
def test_a_count_that_stops_decides_as_the_whole_one_does(conv_algo, curve_of):
    """Also where what is alive decides before anything is replayed."""
    for level in Level:
        whole = curve_of("small:convolutional").on_card(300, Conditions(conv_algo=conv_algo))
        planned, peak = whole.by_first_source, whole.reserved_bytes(level)
        live = max(planned.live_bytes(planned.demanded(one)) for one in level.up_to)
        assert live <= peak
        for limit in {peak, peak - 1, live, live - 1, peak // 2}:
            on_card = curve_of("small:convolutional").on_card(300, Conditions(conv_algo=conv_algo))
            stopped = on_card.reserved_bytes(level, stop_above_bytes=limit)
            assert (stopped > limit) == (peak > limit)
            assert stopped <= peak


def test_what_is_alive_settles_a_verdict_as_a_run_under_the_limit_does(curve_of):
    step = curve_of("small:convolutional").on_card(300, Conditions())
    live = step.step.lower_bound_bytes
    for budget_bytes in (live // 2, live - 1, live, 2 * live):
        runs = step.runs_within(budget_bytes)
        assert (step.verdict(budget_bytes) is Verdict.OOM) == (not runs)
    assert step.verdict(live - 1) is Verdict.OOM


def test_the_worst_is_no_less_than_the_high_end_and_least_where_benchmarking_gives_its_cache_back(curve_of):
    curve = curve_of("vgg16")
    peaks = {}
    for conv_algo in POLICIES:
        on_card = curve.on_card(40, Conditions(conv_algo=conv_algo))
        likely, high, worst = (
            on_card.reserved_bytes(level) for level in (Level.LIKELY, Level.HIGH, Level.WORST)
        )
        assert likely <= high <= worst
        assert likely == on_card.estimate().reserved_bytes
        peaks[conv_algo] = high, worst
    assert peaks["cudnn"][1] > peaks["cudnn-benchmark"][1]
    assert peaks["native"][0] == peaks["native"][1]


def test_each_level_has_its_verdict(curve_of):
    on_card = curve_of("vgg16").on_card(40, Conditions())
    likely_bytes = on_card.reserved_bytes(Level.LIKELY)
    assert on_card.verdict(likely_bytes, Level.LIKELY) is Verdict.FITS
    assert on_card.verdict(likely_bytes, Level.HIGH) is not Verdict.FITS
    assert on_card.runs_within(likely_bytes, Level.LOW)


def test_an_estimate_names_the_largest_workspace_at_each_level(curve_of):
    curve = curve_of("vgg16")
    on_card = curve.on_card(40, Conditions())
    told = on_card.estimate()
    for level, num_bytes in (
        (Level.LOW, told.workspace_low_bytes),
        (Level.LIKELY, told.workspace_likely_bytes),
        (Level.HIGH, told.workspace_high_bytes),
    ):
        sizes = zip(on_card.by_first_source.sizes(level), curve.trace.allocations, strict=True)
        assert num_bytes == max(size for size, a in sizes if a.convolution is not None)
    assert 0 == told.workspace_low_bytes < told.workspace_likely_bytes < told.workspace_high_bytes


def test_the_modules_with_the_largest_workspace_are_named(curve_of):
    on_card = curve_of("vgg16").on_card(40, Conditions())
    sizes = on_card.by_first_source.sizes(Level.HIGH)
    convolutions = on_card.step.convolutions
    largest = max(sizes[index] for index in convolutions)
    holders = {on_card.step.trace.allocations[i].module for i in convolutions if sizes[i] == largest}
    assert holders & set(on_card.largest_plan_modules(Level.HIGH))
    assert on_card.largest_plan_bytes(Level.HIGH) == largest
    native = curve_of("vgg16").on_card(40, Conditions(conv_algo="native"))
    assert native.estimate().workspace_high_bytes > 0  # columns, which shapes decide
    assert (native.largest_plan_modules(Level.HIGH), native.largest_plan_bytes(Level.HIGH)) == ((), 0)


def test_a_verdict_compares_the_high_end_with_the_budget(curve_of):
    on_card = curve_of("davenet-audio").on_card(64, Conditions(conv_algo="cudnn-benchmark"))
    high_bytes = on_card.reserved_bytes()
    assert on_card.verdict(None) is Verdict.FITS
    assert on_card.verdict(high_bytes) is Verdict.FITS
    assert on_card.verdict(high_bytes - 1) in (Verdict.THRASH, Verdict.OOM)
    assert on_card.verdict(on_card.step.lower_bound_bytes - 1) is Verdict.OOM


def test_what_fits_only_by_giving_cached_memory_back_is_thrashing(curve_of):
    on_card = curve_of("davenet-audio").on_card(64, Conditions())
    high_bytes = on_card.reserved_bytes()
    verdicts = [
        on_card.verdict(budget_bytes)
        for budget_bytes in range(high_bytes, high_bytes // 4, -(high_bytes // 40))
    ]
    assert verdicts[0] is Verdict.FITS
    assert verdicts[-1] is Verdict.OOM
    assert Verdict.THRASH in verdicts


def test_benchmarking_takes_its_room_where_it_meets_a_convolution_for_the_first_time_alone(curve_of):
    curve = curve_of("vgg16")
    planned = curve.on_card(8, Conditions(conv_algo="cudnn-benchmark")).by_first_source
    found, again = {}, []
    sizes = planned.sizes(Level.LIKELY)
    for allocation, num_bytes in zip(curve.trace.allocations, sizes, strict=True):
        if allocation.convolution is not None:
            again.append(found.setdefault(allocation.convolution, num_bytes) - num_bytes)
    assert min(again) == 0 < max(again)
    largest = planned.sizes(Level.HIGH)
    assert all(a <= b for a, b in zip(sizes, largest, strict=True))


def test_benchmarking_gives_back_what_is_cached_where_it_meets_a_convolution_for_the_first_time(curve_of):
    # The same sizes, so that all of the difference is in what is given back.
    curve = curve_of("vgg16")
    likely, _, replay = curve.on_card(40, Conditions(conv_algo="cudnn-benchmark")).likely()
    kept = allocator_replay(curve.trace.events, likely)
    assert replay.peak_allocated_position == kept.peak_allocated_position
    assert replay.peak_reserved_bytes < kept.peak_reserved_bytes


def test_nothing_gets_below_the_live_bytes(curve_of):
    for workload in ("davenet-audio", "small:convolutional", "small:all_pairs"):
        curve = curve_of(workload)
        for batch_size in (1, 17, 300):
            native = curve.on_card(batch_size, Conditions(conv_algo="native"))
            assert native.step.lower_bound_bytes <= native.estimate().low_bytes


def test_the_allocators_settings_decide_what_is_reserved(curve_of):
    curve = curve_of("davenet-audio")
    segments = Conditions(settings=AllocatorSettings.parse("expandable_segments:True"))
    plain, expandable = (
        curve.on_card(100, conditions).by_first_source.replay() for conditions in (Conditions(), segments)
    )
    assert expandable.peak_allocated_bytes <= plain.peak_allocated_bytes
    assert expandable.peak_reserved_bytes < plain.peak_reserved_bytes


def test_convolutions_likely_need_less_on_a_card_without_tensor_cores(curve_of):
    curve = curve_of("vgg16")
    ampere, pascal = (
        curve.on_card(32, Conditions(architecture=card, corrections=frozenset())).estimate()
        for card in ("sm_80", "sm_61")
    )
    assert pascal.reserved_bytes < ampere.reserved_bytes
    assert pascal.high_bytes <= ampere.high_bytes  # of whose plans nothing is known
    assert pascal.breakdown[Category.WORKSPACE] == 0


def test_an_estimated_size_takes_its_end_at_each_level(trace_of):
    curve = PeakCurve.through([trace_of("small:lstm", batch_size) for batch_size in TRACED])
    (reserve,) = {
        index
        for index, allocation in enumerate(curve.trace.allocations)
        if allocation.operator == "aten._cudnn_rnn" and allocation.category == Category.ACTIVATION
    } & set(range(len(curve.trace.allocations) // 3))  # of the first step
    planned = curve.on_card(20, Conditions()).by_first_source
    low, likely, high = (planned.sizes(level)[reserve] for level in (Level.LOW, Level.LIKELY, Level.HIGH))
    units = 5 * 20 * 6 * 4  # steps × sequences × units, four bytes each
    assert (low, likely, high) == (5 * units, 5 * units, 6 * units)


def test_estimated_sizes_widen_the_interval(trace_of):
    on_card = PeakCurve.through([trace_of("lstm", 32)]).on_card(32, Conditions())
    low, likely, high = (
        on_card.by_first_source.replay(level) for level in (Level.LOW, Level.LIKELY, Level.HIGH)
    )
    assert low.peak_allocated_bytes < likely.peak_allocated_bytes < high.peak_allocated_bytes
    estimate = on_card.estimate()
    assert estimate.low_bytes < estimate.high_bytes
