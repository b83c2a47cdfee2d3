"""Predictions without a trace, which cost none where a curve holds: as fresh ones, at every size."""

from __future__ import annotations

import dataclasses

import pytest

from tests.workers.predict.conftest import SMALL_WORKLOADS, predict_spec
from workers.predict.curve.warm_curves import WarmCurves
from workers.protocol import TrialOutcome, TrialSpec, Verdict
from workers.run import run
from workers.trace import Trace
from workers.workload.references import parse_reference

SIZES = (1, 4, 7, 11, 16, 17, 64, 65, 300)


def known_spec(attribute: str, batch_size: int = 4, **settings: str) -> TrialSpec:
    """With the file's digest, so that its curve may be kept."""
    workload = parse_reference(f"{SMALL_WORKLOADS}:{attribute}")
    return dataclasses.replace(predict_spec(f"small:{attribute}", batch_size, **settings), workload=workload)


def without_trace(spec: TrialSpec) -> TrialOutcome:
    return run(dataclasses.replace(spec, with_trace=False))


def told(outcome: TrialOutcome) -> TrialOutcome:
    """All of an outcome but its trace and its duration."""
    error = outcome.error and dataclasses.replace(outcome.error, traceback="")
    return dataclasses.replace(outcome, trace_json=None, wall_seconds=0.0, error=error)


class CountedTraces:
    """Traces steps in the warm child, and says at which sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, spec: TrialSpec) -> Trace:
        self.sizes.append(spec.batch_size)
        outcome = run(dataclasses.replace(spec, with_trace=True))
        if outcome.trace_json is None:
            raise ValueError(outcome.error.message)
        return Trace.from_json(outcome.trace_json)


@pytest.mark.parametrize(
    ("attribute", "settings"),
    [
        ("convolutional", {}),
        ("convolutional", {"conv_algo": "native", "precision": "amp-bf16"}),
        ("all_pairs", {}),
        ("branching_at_64", {}),
        ("by_eights", {}),
    ],
)
def test_outcomes_equal_those_of_a_trace_at_the_size(attribute: str, settings: dict[str, str]):
    _require_equal(attribute, settings, SIZES)


def test_they_do_too_where_every_size_allocates_differently():
    _require_equal("sample_by_sample", {}, (3, 5, 11))


def _require_equal(attribute: str, settings: dict[str, str], sizes: tuple[int, ...]) -> None:
    for batch_size in sizes:
        spec = known_spec(attribute, batch_size, **settings)
        outcome = without_trace(spec)
        assert outcome.trace_json is None
        assert told(outcome) == told(run(spec))


def test_a_budget_is_held_against_the_curve():
    spec = known_spec("perceptron", 40)
    needed = without_trace(spec).steady.reserved_bytes
    verdicts = [
        without_trace(dataclasses.replace(spec, budget_bytes=needed - less)).verdict for less in (0, 1)
    ]
    assert verdicts[0] is Verdict.FITS
    assert verdicts[1] is not Verdict.FITS


def test_many_sizes_cost_few_traces_and_convolution_policies_share_them():
    traces = CountedTraces()
    curves = WarmCurves(traces)
    for batch_size in range(4, 1001):
        curves.at(known_spec("perceptron", batch_size))
    assert traces.sizes == [4, 6, 10, 16, 32, 64, 128, 256, 512, 1024]
    curves.at(known_spec("perceptron", 999, conv_algo="native"))
    assert len(traces.sizes) == 10
    curves.at(known_spec("perceptron", 999, precision="bf16"))
    assert traces.sizes[10:] == [4, 6, 10, 512, 1024]


def test_where_a_step_changes_each_size_is_traced_and_elsewhere_none():
    traces = CountedTraces()
    curves = WarmCurves(traces)
    for batch_size in (20, 30, 50, 51, 100, 101):
        assert curves.at(known_spec("branching_at_64", batch_size)).at(batch_size)
    assert traces.sizes == [4, 6, 10, 16, 32, 64, 50, 51, 100, 101]


def test_a_file_of_unknown_content_is_traced_each_time():
    traces = CountedTraces()
    curves = WarmCurves(traces)
    for _ in range(2):
        curves.at(predict_spec("small:perceptron", 16))
    assert traces.sizes == [16, 16]


def test_only_the_latest_curves_are_kept():
    traces = CountedTraces()
    curves = WarmCurves(traces)
    specs = [dataclasses.replace(known_spec("perceptron", 5), seed=seed) for seed in range(9)]
    for spec in (*specs, specs[-1], specs[0]):
        curves.at(spec)
    assert traces.sizes == [4, 6, 10] * 10
