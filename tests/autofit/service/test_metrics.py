"""The metrics as Prometheus would scrape them, over HTTP on the loopback interface."""

from __future__ import annotations

import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from autofit.errors import ExitCode, InfrastructureError
from autofit.service.events import (
    Event,
    Progress,
    SettingSettled,
    TrialFinished,
    TrialStarted,
    TuneFinished,
    TuneStarted,
)
from autofit.service.metrics import Metrics, serve_metrics
from workers.protocol import (
    Device,
    Evidence,
    Knobs,
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


def started(workload: str = "resnet50", budget_bytes: int = 16 * GIB) -> TuneStarted:
    return TuneStarted(workload=workload, budget_bytes=budget_bytes, study="night")


def settled(largest_batch: int | None, *, workload: str = "resnet50", **changes) -> SettingSettled:
    usual = {"knobs": Knobs(), "first_failing_batch": 999, "peaks": PEAKS, "evidence": Evidence.PREDICTED}
    return SettingSettled(workload=workload, largest_batch=largest_batch, **{**usual, **changes})


def finished(probe: Probe, verdict: Verdict, wall_seconds: float) -> TrialFinished:
    spec = TrialSpec(workload=WorkloadRef(kind="builtin", target="resnet50"), batch_size=8, probe=probe)
    outcome = TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="T4"),
        batch_size=8,
        knobs=Knobs(),
        wall_seconds=wall_seconds,
    )
    return TrialFinished(trial=1, spec=spec, outcome=outcome)


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
    """Reads the endpoint; a sample is named as in PromQL, its labels in the order they are declared."""

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


def test_the_budget_is_the_one_of_the_search_that_began_last(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(budget_bytes=8 * GIB), started(budget_bytes=16 * GIB))
    assert scrape()["autofit_budget_bytes{}"] == 16 * GIB


def test_the_best_batch_of_an_algorithm_is_the_largest_of_its_settings(metrics: Metrics, scrape: Scrape):
    feed(
        metrics,
        settled(100),
        settled(140, knobs=Knobs(precision="amp-bf16")),
        settled(90, knobs=Knobs(conv_algo="native")),
        settled(None, knobs=Knobs(conv_algo="cudnn-benchmark")),
    )
    samples = scrape()
    assert samples["autofit_best_batch_size{conv_algo=cudnn,workload=resnet50}"] == 140
    assert samples["autofit_best_batch_size{conv_algo=native,workload=resnet50}"] == 90
    assert samples["autofit_best_batch_size{conv_algo=cudnn-benchmark,workload=resnet50}"] == 0


def test_a_measured_answer_replaces_the_predicted_one_even_by_a_smaller_batch(
    metrics: Metrics, scrape: Scrape
):
    feed(metrics, settled(100), settled(96, evidence=Evidence.MEASURED))
    assert scrape()["autofit_best_batch_size{conv_algo=cudnn,workload=resnet50}"] == 96


def test_peaks_are_those_of_the_largest_batch_by_kind_and_evidence(metrics: Metrics, scrape: Scrape):
    measured = Peaks(reserved_bytes=14 * GIB, device_bytes=15 * GIB)
    feed(
        metrics,
        settled(100),
        settled(80, knobs=Knobs(conv_algo="native"), peaks=Peaks(reserved_bytes=GIB)),
        settled(96, evidence=Evidence.MEASURED, peaks=measured),
    )
    samples = {name: value for name, value in scrape().items() if name.startswith("autofit_peak")}
    assert samples == {
        "autofit_peak_memory_bytes{evidence=predicted,kind=allocated,workload=resnet50}": 11 * GIB,
        "autofit_peak_memory_bytes{evidence=predicted,kind=reserved,workload=resnet50}": 12 * GIB,
        "autofit_peak_memory_bytes{evidence=predicted,kind=device,workload=resnet50}": 13 * GIB,
        "autofit_peak_memory_bytes{evidence=measured,kind=reserved,workload=resnet50}": 14 * GIB,
        "autofit_peak_memory_bytes{evidence=measured,kind=device,workload=resnet50}": 15 * GIB,
    }


def test_where_nothing_fits_there_is_no_peak(metrics: Metrics, scrape: Scrape):
    feed(metrics, settled(None, peaks=Peaks()))
    samples = scrape()
    assert samples["autofit_best_batch_size{conv_algo=cudnn,workload=resnet50}"] == 0
    assert not [name for name in samples if name.startswith("autofit_peak_memory_bytes")]


def test_a_new_search_of_a_workload_forgets_what_another_budget_gave(metrics: Metrics, scrape: Scrape):
    feed(metrics, started(), settled(100), settled(50, workload="vgg16"), started())
    names = [name for name in scrape() if "workload=" in name]
    assert names
    assert all("workload=vgg16" in name for name in names)


def test_workloads_beyond_the_cap_share_one_label(registry: CollectorRegistry, scrape: Scrape):
    metrics = Metrics(registry, max_workloads=2)
    for number in range(5):
        feed(metrics, started(f"w{number}"), settled(10 + number, workload=f"w{number}"))
    feed(metrics, settled(77, workload="w0"))
    batches = {
        name.rpartition("=")[2].rstrip("}"): value
        for name, value in scrape().items()
        if name.startswith("autofit_best_batch_size")
    }
    assert batches == {"w0": 77, "w1": 11, "other": 14}


def test_events_that_say_nothing_measurable_change_nothing(metrics: Metrics, scrape: Scrape):
    before = scrape()
    trial = finished(Probe.CPU, Verdict.FITS, 1.0)
    feed(
        metrics,
        TrialStarted(trial=1, spec=trial.spec),
        Progress(stage="measuring"),
        TuneFinished(workload="resnet50", best_batch=1, best_knobs=Knobs(), num_trials=1, wall_seconds=1.0),
    )
    assert scrape() == before


def test_a_label_of_a_user_cannot_break_the_exposition(metrics: Metrics, scrape: Scrape):
    feed(metrics, settled(7, workload='my "model"\\\n.py:net'))
    assert scrape()['autofit_best_batch_size{conv_algo=cudnn,workload=my "model"\\\n.py:net}'] == 7


def test_closing_frees_the_port(registry: CollectorRegistry):
    server = serve_metrics(registry, 0)
    server.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10)
    again = serve_metrics(registry, server.port)
    assert again.port == server.port
    again.close()


def test_a_port_in_use_is_a_clear_error(registry: CollectorRegistry):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InfrastructureError, match=rf"127\.0\.0\.1:{port} \(Address already in use\)"
        ) as raised:
            serve_metrics(registry, port)
    assert raised.value.exit_code is ExitCode.INFRASTRUCTURE
    assert "choose a free port" in raised.value.message


def test_promtool_finds_nothing_to_complain_about(metrics: Metrics, url: str):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    feed(metrics, started(), settled(100), finished(Probe.CPU, Verdict.FITS, 3.0))
    with urllib.request.urlopen(url, timeout=10) as response:
        exposition = response.read()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=exposition, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
