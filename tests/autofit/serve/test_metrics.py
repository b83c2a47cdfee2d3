"""The metrics as Prometheus would scrape them, over HTTP on the loopback interface."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from autofit.events import (
    BoundaryMoved,
    Event,
    JobsCounted,
    PredictionCompared,
    Progress,
    RecommendationMade,
    TrialAbandoned,
    TrialFinished,
    TrialStarted,
    TuneFinished,
    TuneStarted,
    WorkersChanged,
)
from autofit.serve.metrics import Metrics
from autofit.serve.server import serve_metrics
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)

GIB = 2**30
PEAKS = Peaks(allocated_bytes=11 * GIB, reserved_bytes=12 * GIB, device_bytes=13 * GIB)

Scrape = Callable[[], dict[str, float]]


def started(
    workload: str = "resnet50",
    *,
    gpu: str = "t4",
    budget_bytes: int = 16 * GIB,
    at: float = 1.0,
    study: str = "",
) -> TuneStarted:
    return TuneStarted(
        workload=workload,
        gpu=gpu,
        budget_bytes=budget_bytes,
        study=study or f"{workload}-{gpu}",
        started_seconds=at,
    )


def moved(largest_batch: int | None, *, study: str = "resnet50-t4", **changes) -> BoundaryMoved:
    usual = {"knobs": Knobs(), "peaks": PEAKS, "peak_bytes": 12 * GIB, "evidence": Evidence.PREDICTED}
    return BoundaryMoved(study=study, largest_batch=largest_batch, **{**usual, **changes})


def spec(probe: Probe) -> TrialSpec:
    return TrialSpec(workload=WorkloadRef(kind="builtin", target="resnet50"), batch_size=8, probe=probe)


def begun(
    trial: int, *, probe: Probe = Probe.CPU, at: float = 1.0, study: str = "resnet50-t4"
) -> TrialStarted:
    return TrialStarted(study=study, trial=trial, spec=spec(probe), started_seconds=at)


def finished(
    probe: Probe = Probe.CPU,
    verdict: Verdict = Verdict.FITS,
    wall_seconds: float = 1.0,
    *,
    trial: int = 1,
    study: str = "resnet50-t4",
) -> TrialFinished:
    outcome = TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="T4"),
        batch_size=8,
        knobs=Knobs(),
        wall_seconds=wall_seconds,
    )
    return TrialFinished(study=study, trial=trial, spec=spec(probe), outcome=outcome)


def compared(trial: int, predicted_bytes: int, measured_bytes: int) -> PredictionCompared:
    return PredictionCompared(
        study="resnet50-t4", trial=trial, predicted_bytes=predicted_bytes, measured_bytes=measured_bytes
    )


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


@pytest.fixture
def url(registry: CollectorRegistry) -> Iterator[str]:
    server = serve_metrics(registry, 0)
    yield f"http://127.0.0.1:{server.port}/metrics"
    server.close()


@pytest.fixture
def scrape(url: str) -> Scrape:
    """Reads the endpoint; a sample is named as in PromQL, its labels in the order of the alphabet."""

    def read() -> dict[str, float]:
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        return {
            f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return read


def feed(metrics: Metrics, *events: Event) -> None:
    for event in events:
        metrics(event)


def named(samples: dict[str, float], name: str) -> dict[str, float]:
    """The samples of a metric, by their labels."""
    return {
        labels.rstrip("}"): value
        for metric, _, labels, value in ((*key.partition("{"), value) for key, value in samples.items())
        if metric == name
    }


def test_trials_are_counted_by_probe_and_verdict_and_timed_by_probe(metrics: Metrics, scrape: Scrape):
    feed(
        metrics,
        finished(Probe.CPU, Verdict.FITS, 3.0),
        finished(Probe.CPU, Verdict.FITS, 40.0),
        finished(Probe.CPU, Verdict.OOM, 700.0),
        finished(Probe.PREDICT, Verdict.FITS, 0.2),
    )
    samples = scrape()
    assert samples["autofit_trials_total{probe=cpu,verdict=FITS}"] == 2
    assert samples["autofit_trials_total{probe=cpu,verdict=OOM}"] == 1
    assert samples["autofit_trials_total{probe=predict,verdict=FITS}"] == 1
    assert samples["autofit_trial_duration_seconds_count{probe=cpu}"] == 3
    assert samples["autofit_trial_duration_seconds_sum{probe=cpu}"] == 743.0
    assert samples["autofit_trial_duration_seconds_bucket{le=5.0,probe=cpu}"] == 1
    assert samples["autofit_trial_duration_seconds_bucket{le=600.0,probe=cpu}"] == 2
    assert samples["autofit_trial_duration_seconds_bucket{le=0.25,probe=predict}"] == 1


def test_every_verdict_is_there_from_the_start_so_that_its_first_trial_shows_in_a_rate(
    metrics: Metrics, scrape: Scrape
):
    counts = {name: value for name, value in scrape().items() if name.startswith("autofit_trials_total")}
    assert len(counts) == len(Probe) * len(Verdict)
    assert set(counts.values()) == {0}


def test_trials_that_ran_out_of_memory_are_counted(metrics: Metrics, scrape: Scrape):
    feed(
        metrics,
        finished(verdict=Verdict.OOM),
        finished(verdict=Verdict.OOM),
        finished(verdict=Verdict.THRASH),
    )
    assert named(scrape(), "autofit_oom_total") == {"probe=cpu": 2, "probe=cuda": 0, "probe=predict": 0}


def test_a_budget_is_that_of_the_search_that_began_last(metrics: Metrics, scrape: Scrape):
    feed(
        metrics,
        started(budget_bytes=8 * GIB),
        started(gpu="h100-80g", budget_bytes=76 * GIB),
        started(budget_bytes=16 * GIB, at=2.0),
        started(budget_bytes=4 * GIB, at=1.5, study="read later, begun earlier"),
    )
    assert named(scrape(), "autofit_budget_bytes") == {
        "gpu=h100-80g,workload=resnet50": 76 * GIB,
        "gpu=t4,workload=resnet50": 16 * GIB,
    }


def test_the_best_batch_of_an_algorithm_is_the_largest_of_its_settings(metrics: Metrics, scrape: Scrape):
    feed(
        metrics,
        started(),
        moved(100),
        moved(140, knobs=Knobs(precision="amp-bf16")),
        moved(90, knobs=Knobs(conv_algo="native")),
        moved(None, knobs=Knobs(conv_algo="cudnn-benchmark"), peaks=Peaks(), peak_bytes=None),
    )
    assert named(scrape(), "autofit_best_batch_size") == {
        "conv_algo=cudnn,gpu=t4,workload=resnet50": 140,
        "conv_algo=native,gpu=t4,workload=resnet50": 90,
        "conv_algo=cudnn-benchmark,gpu=t4,workload=resnet50": 0,
    }


def test_a_boundary_may_move_back(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), moved(100), moved(96))
    assert named(scrape(), "autofit_best_batch_size") == {"conv_algo=cudnn,gpu=t4,workload=resnet50": 96}


def recommends(batch_size: int | None, *, study: str = "resnet50-t4", **knobs: str) -> RecommendationMade:
    found = None if batch_size is None else Knobs(**knobs)
    return RecommendationMade(study=study, knobs=found, batch_size=batch_size)


def test_what_a_search_recommends_stands_beside_its_best(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), moved(98, knobs=Knobs(conv_algo="native")), moved(69), recommends(69))
    samples = scrape()
    assert named(samples, "autofit_recommended_batch_size") == {
        "conv_algo=cudnn,gpu=t4,workload=resnet50": 69
    }
    assert max(named(samples, "autofit_best_batch_size").values()) == 98


def test_of_the_recommendations_of_a_search_the_last_counts(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), recommends(69), recommends(98, conv_algo="native"))
    assert named(scrape(), "autofit_recommended_batch_size") == {
        "conv_algo=native,gpu=t4,workload=resnet50": 98
    }
    feed(metrics, recommends(None))
    assert not named(scrape(), "autofit_recommended_batch_size")


def test_the_predicted_step_of_what_is_recommended_has_a_series_where_it_is_stated(
    metrics: Metrics, scrape: Scrape
):
    said = dataclasses.replace(recommends(69), predicted_step_seconds=0.25, step_time_error=-0.1)
    feed(metrics, started(), said)
    samples = scrape()
    assert named(samples, "autofit_predicted_step_seconds") == {
        "conv_algo=cudnn,gpu=t4,workload=resnet50": 0.25
    }
    assert named(samples, "autofit_step_time_error_ratio") == {"gpu=t4,workload=resnet50": -0.1}
    feed(metrics, recommends(69))
    samples = scrape()
    assert not named(samples, "autofit_predicted_step_seconds")
    assert not named(samples, "autofit_step_time_error_ratio")


def test_a_search_that_begins_anew_recommends_nothing_yet(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), recommends(69), started(at=2.0, study="again"), recommends(70))
    assert not named(scrape(), "autofit_recommended_batch_size")


def test_each_card_of_a_fleet_has_its_own_answer(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), started(gpu="l4"), moved(100), moved(150, study="resnet50-l4"))
    assert named(scrape(), "autofit_best_batch_size") == {
        "conv_algo=cudnn,gpu=l4,workload=resnet50": 150,
        "conv_algo=cudnn,gpu=t4,workload=resnet50": 100,
    }


def test_peaks_are_those_of_the_largest_batch_of_all(metrics: Metrics, scrape: Scrape):
    measured = Peaks(reserved_bytes=14 * GIB, device_bytes=15 * GIB)
    feed(
        metrics,
        started(),
        moved(100),
        moved(80, knobs=Knobs(conv_algo="native"), peaks=Peaks(reserved_bytes=GIB)),
    )
    assert named(scrape(), "autofit_peak_memory_bytes") == {
        "evidence=predicted,kind=allocated,workload=resnet50": 11 * GIB,
        "evidence=predicted,kind=reserved,workload=resnet50": 12 * GIB,
        "evidence=predicted,kind=device,workload=resnet50": 13 * GIB,
    }
    feed(metrics, moved(101, evidence=Evidence.MEASURED, peaks=measured))
    assert named(scrape(), "autofit_peak_memory_bytes") == {
        "evidence=measured,kind=reserved,workload=resnet50": 14 * GIB,
        "evidence=measured,kind=device,workload=resnet50": 15 * GIB,
    }


def test_the_peak_of_the_best_is_held_against_its_budget(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), moved(100), moved(50, knobs=Knobs(conv_algo="native"), peak_bytes=GIB))
    assert named(scrape(), "autofit_budget_utilization_ratio") == {"gpu=t4,workload=resnet50": 0.75}


def test_where_nothing_fits_there_is_no_peak(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), moved(None, peaks=Peaks(), peak_bytes=None))
    samples = scrape()
    assert list(named(samples, "autofit_best_batch_size").values()) == [0]
    assert not named(samples, "autofit_peak_memory_bytes")
    assert not named(samples, "autofit_budget_utilization_ratio")


def test_the_prediction_is_held_against_the_newest_measurement(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), compared(4, 9 * GIB, 10 * GIB), compared(3, 20 * GIB, 10 * GIB))  # begun earlier
    (error,) = named(scrape(), "autofit_prediction_error_ratio").values()
    assert error == pytest.approx(-0.1)


def test_a_new_search_of_a_workload_forgets_what_an_earlier_one_gave(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), started("vgg16"))
    feed(metrics, moved(100), compared(1, GIB, GIB), moved(50, study="vgg16-t4"))
    feed(metrics, started(at=2.0, study="again"), moved(70), compared(1, GIB, GIB))
    names = [name for name in scrape() if "workload=" in name and "budget_bytes" not in name]
    assert names
    assert all("workload=vgg16" in name for name in names)


def test_workloads_and_cards_beyond_the_cap_share_one_label(registry: CollectorRegistry, scrape: Scrape):
    metrics = Metrics(registry, max_workloads=2)
    for number in range(5):
        feed(
            metrics,
            started(f"w{number}", gpu=f"g{number}", at=number),
            moved(10 + number, study=f"w{number}-g{number}"),
        )
    feed(metrics, moved(77, study="w0-g0"))
    assert named(scrape(), "autofit_best_batch_size") == {
        "conv_algo=cudnn,gpu=g0,workload=w0": 77,
        "conv_algo=cudnn,gpu=g1,workload=w1": 11,
        "conv_algo=cudnn,gpu=other,workload=other": 14,
    }


def test_trials_are_under_way_until_they_finish_or_are_given_up(metrics: Metrics, scrape: Scrape):
    feed(metrics, begun(1, at=5.0), begun(1, at=7.0, study="other"), begun(2, at=6.0, probe=Probe.CUDA))
    samples = scrape()
    assert named(samples, "autofit_trials_in_flight") == {"probe=cpu": 2, "probe=cuda": 1, "probe=predict": 0}
    assert samples["autofit_oldest_trial_start_timestamp_seconds{}"] == 5.0
    feed(metrics, finished(trial=1), TrialAbandoned(study="resnet50-t4", trial=2))
    samples = scrape()
    assert named(samples, "autofit_trials_in_flight") == {"probe=cpu": 1, "probe=cuda": 0, "probe=predict": 0}
    assert samples["autofit_oldest_trial_start_timestamp_seconds{}"] == 7.0
    feed(metrics, TrialAbandoned(study="other", trial=1))
    assert scrape()["autofit_oldest_trial_start_timestamp_seconds{}"] == 0


def test_workers_are_those_of_all_searches(metrics: Metrics, scrape: Scrape):
    feed(
        metrics,
        WorkersChanged(study="a", num_busy=2, num_idle=1),
        WorkersChanged(study="b", num_busy=1, num_idle=0),
    )
    assert named(scrape(), "autofit_workers") == {"state=busy": 3, "state=idle": 1}
    feed(metrics, WorkersChanged(study="a", num_busy=0, num_idle=0))
    assert named(scrape(), "autofit_workers") == {"state=busy": 1, "state=idle": 0}


def test_jobs_are_counted_in_every_state(metrics: Metrics, scrape: Scrape):
    feed(metrics, JobsCounted(by_state={"queued": 3, "failed": 1}), JobsCounted(by_state={"queued": 2}))
    assert named(scrape(), "autofit_jobs") == {
        "state=queued": 2,
        "state=running": 0,
        "state=succeeded": 0,
        "state=failed": 0,
        "state=stopped": 0,
    }


def test_it_says_what_runs(metrics: Metrics, scrape: Scrape):
    (labels,) = named(scrape(), "autofit_build_info")
    assert labels == f"python={platform.python_version()},version={importlib.metadata.version('autofit-gpu')}"


def test_events_that_say_nothing_measurable_change_nothing(metrics: Metrics, scrape: Scrape):
    before = scrape()
    feed(
        metrics,
        moved(100, study="nobody began it"),
        Progress(stage="measuring"),
        TuneFinished(workload="resnet50", best_batch=1, best_knobs=Knobs(), num_trials=1, wall_seconds=1.0),
    )
    assert scrape() == before


def test_a_label_of_a_user_cannot_break_the_exposition(metrics: Metrics, scrape: Scrape):
    feed(metrics, started('my "model"\\\n\x1b[2J.py:net', study="mine"), moved(7, study="mine"))
    (labels,) = named(scrape(), "autofit_best_batch_size")
    assert labels == 'conv_algo=cudnn,gpu=t4,workload=my "model"\\ \\u001b[2J.py:net'


def test_promtool_finds_nothing_to_complain_about(metrics: Metrics, url: str):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    feed(metrics, started(), moved(100), compared(1, GIB, GIB))
    with urllib.request.urlopen(url, timeout=10) as response:
        exposition = response.read()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=exposition, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
