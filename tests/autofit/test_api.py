"""`tune`, `estimate` and `peak_curve` for real, each prediction in the one warm child of the process."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autofit
from autofit.dispatch.inline import InlineDispatcher
from autofit.errors import UnknownGpuError, UnknownModelError, UsageError, WorkloadFailedError
from autofit.events import Event, TrialStarted, TuneFinished, TuneStarted
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer
from autofit.tuning import session
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, Verdict

WORKLOADS = Path(__file__).with_name("tiny_workloads.py")
SMALL = f"{WORKLOADS}:small"
MIB, GIB = 1024**2, 1024**3


def ignore(_event: Event) -> None:
    pass


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[autofit.TuneResult, list[Event]]:
    """One search over all convolution algorithms, with its events."""
    events: list[Event] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        return autofit.tune(SMALL, gpu_mem="6G", on_event=events.append), events


def test_the_document_of_a_search_is_consistent(tuned: Any) -> None:
    document = json.loads(tuned[0].to_json())
    budget = document["budget"]
    assert budget["device_total_bytes"] == 6 * GIB
    assert (
        budget["context_bytes"] + budget["other_bytes"] + budget["margin_bytes"] + budget["usable_bytes"]
        == 6 * GIB
    )
    assert document["device"] == {"kind": "cuda", "name": "6.00 GiB card", "driver": None}
    frontier = document["frontier"]
    assert [entry["knobs"]["conv_algo"] for entry in frontier] == [
        "cudnn",
        "cudnn-benchmark",
        "cudnn-deterministic",
        "native",
    ]
    best = document["best"]
    assert best["batch_size"] == max(entry["largest_batch"] for entry in frontier)
    assert best["interval"]["low_bytes"] <= best["peak_reserved_bytes"] <= best["interval"]["high_bytes"]
    assert best["interval"]["high_bytes"] <= budget["usable_bytes"]
    assert best["peak_allocated_bytes"] <= best["peak_reserved_bytes"]
    assert best["device_peak_bytes"] == best["peak_reserved_bytes"] + budget["context_bytes"]
    assert document["num_trials"] == 2 * len(frontier)
    assert document["versions"].keys() == {"python", "autofit", "torch", "ray", "optuna"}
    assert len(document["fingerprint"]) == 64


def test_for_every_setting_the_largest_size_fits_and_the_next_is_predicted_to_fail(tuned: Any) -> None:
    result = tuned[0]
    for entry in result.frontier:
        curve = autofit.peak_curve(SMALL, conv_algo=entry.knobs.conv_algo)
        assert curve(entry.largest_batch).interval.high_bytes <= result.budget.usable_bytes
        assert entry.first_failing_batch == entry.largest_batch + 1
        assert curve(entry.first_failing_batch).interval.high_bytes > result.budget.usable_bytes
        assert "is predicted to reserve" in entry.reason


def test_the_answer_has_the_estimate_of_its_best_size(tuned: Any) -> None:
    result = tuned[0]
    estimate = autofit.estimate(
        SMALL, batch_size=result.best.batch_size, conv_algo=result.best.knobs.conv_algo
    )
    assert result.estimate == dataclasses.replace(
        estimate,
        device=result.device,
        trace_digest=result.estimate.trace_digest,
        limit_bytes=result.budget.device_total_bytes - result.budget.context_bytes,
        likely_verdict=Verdict.FITS,
    )
    assert result.best.peak_reserved_bytes == estimate.peak_reserved_bytes


def test_each_card_of_the_class_gets_what_tuning_on_it_gives(tuned: Any) -> None:
    result = tuned[0]
    totals = [answer.total_bytes for answer in result.cards]
    assert len(totals) > 1
    assert totals == sorted(totals)
    for answer in result.cards:
        on_card = autofit.tune(SMALL, gpu=answer.gpu, conv_algo=result.best.knobs.conv_algo)
        assert on_card.best is not None
        assert on_card.best.batch_size == answer.largest_batch
        assert on_card.cards == ()


def test_the_events_begin_and_end_with_the_search(tuned: Any) -> None:
    result, events = tuned
    (started,) = [event for event in events if isinstance(event, TuneStarted)]
    assert (started.study, started.budget_bytes) == (result.study, result.budget.usable_bytes)
    assert events.index(started) < min(
        events.index(event) for event in events if isinstance(event, TrialStarted)
    )
    assert events[-1] == TuneFinished(
        workload="tiny_workloads.py:small",
        best_batch=result.best.batch_size,
        best_knobs=result.best.knobs,
        num_trials=len(result.trials),
        wall_seconds=result.wall_seconds,
    )


def test_the_same_question_is_answered_from_the_study_and_fresh_asks_again() -> None:
    asked: list[Event] = []
    first = autofit.tune(SMALL, gpu="rtx-2060", conv_algo="native")
    again = autofit.tune(SMALL, gpu="rtx-2060", conv_algo="native", on_event=asked.append)
    assert (again.study, again.fingerprint, again.best) == (first.study, first.fingerprint, first.best)
    assert not any(isinstance(event, TrialStarted) for event in asked)
    autofit.tune(SMALL, gpu="rtx-2060", conv_algo="native", fresh=True, on_event=asked.append)
    assert any(isinstance(event, TrialStarted) for event in asked)


def test_what_the_step_takes_from_outside_its_file_is_part_of_the_question(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import pathlib, torch\n"
        "from autofit_workers.workload.workload import Workload\n"
        "def model():\n"
        "    return torch.nn.Linear(1 << 20, int(pathlib.Path(__file__).with_name('width').read_text()))\n"
        "w = Workload(build_model=model, make_batch=lambda b, d: torch.randn(b, 1 << 20, device=d),\n"
        "    loss=lambda m, x: m(x).mean())\n"
    )
    results = []
    for width in ("1", "64"):
        (tmp_path / "width").write_text(width)
        results.append(autofit.tune(f"{tmp_path / 'mine.py'}:w", gpu_mem="2G", conv_algo="cudnn"))
    narrow, wide = results
    assert narrow.fingerprint != wide.fingerprint
    assert narrow.best is not None
    assert wide.best is not None
    assert narrow.best.batch_size > wide.best.batch_size


@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_a_curve_at_a_size_equals_the_estimate_of_that_size(batch_size: int) -> None:
    traced = autofit.estimate(SMALL, batch_size=batch_size, conv_algo="cudnn-benchmark", gpu="rtx-3090")
    curve = autofit.peak_curve(SMALL, conv_algo="cudnn-benchmark", gpu="rtx-3090")
    found = curve(batch_size)
    # A workspace between two sizes that cuDNN was asked for is rounded up to a byte.
    of_workspaces = {"breakdown", "workspace_bytes", "largest", "trace_digest"}
    for name in {field.name for field in dataclasses.fields(traced)} - of_workspaces:
        assert getattr(found, name) == getattr(traced, name), name
    assert dataclasses.asdict(found.breakdown) == pytest.approx(dataclasses.asdict(traced.breakdown), abs=2)
    assert (found.workspace_bytes is None) == (traced.workspace_bytes is None)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("conv_algo", ["cudnn", "cudnn-benchmark", "native"])
def test_an_estimate_adds_up(mode: str, conv_algo: str) -> None:
    estimate = autofit.estimate(SMALL, batch_size=8, mode=mode, conv_algo=conv_algo)
    parts = dataclasses.asdict(estimate.breakdown)
    assert sum(parts.values()) == estimate.peak_allocated_bytes
    assert min(parts.values()) >= 0
    assert parts["activations"] >= 8 * 64 * MIB
    assert estimate.peak_allocated_bytes <= estimate.peak_reserved_bytes
    interval = estimate.interval
    assert interval.low_bytes <= interval.likely_bytes == estimate.peak_reserved_bytes <= interval.high_bytes
    assert estimate.device_peak_bytes == estimate.peak_reserved_bytes + estimate.context_bytes
    assert (estimate.mode, estimate.batch_size) == (mode, 8)
    # Benchmarking takes its room in the first step, before there are states.
    has_states = mode == "train" and conv_algo != "cudnn-benchmark"
    assert (parts["optimizer_state"] > 0) == has_states
    if mode == "infer":
        assert parts["gradients"] == 0  # and in training where the peak is before the first of them


def test_a_card_decides_name_context_and_workspace() -> None:
    assumed, named = (autofit.estimate(SMALL, batch_size=4, gpu=gpu) for gpu in (None, "h100-80g"))
    assert (assumed.device.name, named.device.name) == ("sm_80", "h100-80g")
    assert (assumed.context_bytes, named.context_bytes) == (638 * MIB, 742 * MIB)


def test_a_workload_made_here_crosses_to_the_worker_by_value() -> None:
    width = 1 << 18

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(width, 8)

        def forward(self, batch: torch.Tensor) -> Any:
            return self.layer(batch)

    workload = autofit.Workload(
        build_model=Wide,
        make_batch=lambda batch_size, device: torch.randn(batch_size, width, device=device),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer="sgd",
    )
    estimate = autofit.estimate(workload, batch_size=16)
    assert estimate.breakdown.inputs == 16 * width * 4
    assert estimate.breakdown.parameters >= 8 * width * 4
    result = autofit.tune(workload, gpu_mem="1G", conv_algo="cudnn")
    assert result.best is not None
    assert result.workload == estimate.workload == "Wide"


def test_a_module_class_is_tuned_with_the_shape_of_its_input() -> None:
    result = autofit.tune(
        f"{WORKLOADS}:Classifier", gpu_mem="1G", input="3x64x64", classes=10, conv_algo="cudnn"
    )
    assert result.best is not None


def test_a_step_that_loops_over_the_samples_is_traced_at_every_size_tried_and_the_answer_says_so() -> None:
    result = autofit.tune(f"{WORKLOADS}:loops", gpu_mem="2G", conv_algo="native")
    assert "each size tried was traced" in result.notes[0]
    (entry,) = result.frontier
    assert entry.largest_batch is not None
    assert entry.first_failing_batch == entry.largest_batch + 1
    estimate = autofit.estimate(f"{WORKLOADS}:loops", batch_size=entry.largest_batch, conv_algo="native")
    assert estimate.peak_reserved_bytes == entry.peak_reserved_bytes


def test_a_step_in_portions_is_found_out_at_the_answer_and_traced_there() -> None:
    result = autofit.tune(f"{WORKLOADS}:portions", gpu_mem="1G", conv_algo="native", max_batch=60)
    assert "each size tried was traced" in result.notes[0]
    assert result.best is not None
    there = autofit.estimate(f"{WORKLOADS}:portions", batch_size=result.best.batch_size, conv_algo="native")
    assert result.best.peak_reserved_bytes == there.peak_reserved_bytes


def test_each_of_several_settings_is_confirmed_at_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though they answer the same size, and the first of them differs there."""
    confirm, found = Predictor.confirm, {}

    def watched(predictor: Predictor, knobs: Knobs, card: Card, batch_size: int) -> bool:
        found[knobs.optimizer, batch_size] = confirm(predictor, knobs, card, batch_size)
        return found[knobs.optimizer, batch_size]

    monkeypatch.setattr(Predictor, "confirm", watched)
    options = {"gpu_mem": "1G", "conv_algo": "native", "max_batch": 60, "search": ["optimizer=sgd,adam"]}
    autofit.tune(f"{WORKLOADS}:portions", **options)
    assert found == {("sgd", 60): False, ("adam", 60): True}  # whose peak is in the optimizer's step


@pytest.mark.parametrize("option", ["metrics_port", "model"])
def test_what_is_the_command_lines_alone_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        autofit.tune(SMALL, gpu_mem="1G", **{option: "9464"})


def test_a_step_that_needs_two_samples_is_searched_from_two_on() -> None:
    workload = f"{WORKLOADS}:contrastive"
    options = {"conv_algo": "native", "risk": "likely"}  # independent of what real runs left over
    tight = autofit.tune(workload, gpu_mem="1602M", **options)
    assert tight.best is None
    (entry,) = tight.frontier
    assert (entry.largest_batch, entry.first_failing_batch) == (None, 2)
    assert tight.estimate is not None
    assert tight.estimate.batch_size == 2
    assert autofit.tune(SMALL, gpu_mem="1602M", **options).best is not None  # one sample would fit
    roomy = autofit.tune(workload, gpu_mem="2G", **options)
    assert roomy.best is not None
    assert roomy.best.batch_size >= 2
    with pytest.raises(WorkloadFailedError, match="a pair needs two samples"):
        autofit.tune(workload, gpu_mem="2G", max_batch=1)


def test_where_nothing_fits_the_estimate_is_that_of_the_smallest_size() -> None:
    result = autofit.tune(SMALL, gpu_mem="768M", conv_algo="native")
    assert result.best is None
    assert result.cards == ()
    assert result.estimate is not None
    assert result.estimate.batch_size == 1
    assert result.estimate.interval.high_bytes > result.budget.usable_bytes


def test_a_cap_is_kept_to() -> None:
    result = autofit.tune(SMALL, gpu_mem="6G", max_batch=3, conv_algo="native")
    assert result.best is not None
    assert result.best.batch_size == 3
    assert result.frontier[0].first_failing_batch is None


def test_a_global_batch_is_accumulated_from_the_largest_batch_that_divides_it() -> None:
    free, result, whole = (
        autofit.tune(SMALL, gpu_mem="4G", conv_algo="native", max_batch=4096, global_batch=size)
        for size in (None, 360, 4)
    )
    assert free.best is not None
    assert result.best is not None
    assert whole.best is not None
    (entry,) = result.frontier
    divisors = [size for size in range(1, 361) if 360 % size == 0]
    fitting = [size for size in divisors if size <= free.best.batch_size]
    assert result.best.batch_size == max(fitting) < 360
    assert result.best.grad_accumulation * result.best.batch_size == 360
    assert entry.first_failing_batch == divisors[len(fitting)]
    assert "the next that divides the global batch of 360, is predicted" in entry.reason
    assert (whole.best.batch_size, whole.best.grad_accumulation) == (4, 1)
    assert whole.frontier[0].reason == "batch 4 is the whole global batch"
    estimate = autofit.estimate(SMALL, batch_size=4, conv_algo="native")
    assert whole.best.peak_allocated_bytes == estimate.peak_allocated_bytes
    with pytest.raises(UsageError, match="batch size 7 does not divide the global batch of 360"):
        autofit.estimate(SMALL, batch_size=7, global_batch=360)


def test_a_step_without_shapes_is_refused_with_its_line_and_the_advice_to_measure() -> None:
    with pytest.raises(
        WorkloadFailedError, match=r"tiny_workloads\.py:\d+:_with_own_kernel .*measure"
    ) as raised:
        autofit.tune(f"{WORKLOADS}:without_shapes", gpu_mem="6G")
    assert (raised.value.kind, raised.value.exit_code) == ("unsupported", 4)


def test_what_a_mask_selects_is_assumed_said_and_in_the_interval() -> None:
    picks = f"{WORKLOADS}:picks_inputs_by_value"
    half, tenth = (
        autofit.estimate(picks, batch_size=4096, gpu="rtx-3090", assume=f"nonzero={share}")
        for share in (0.5, 0.1)
    )
    (assumed,) = half.assumptions
    assert "tiny_workloads.py:" in assumed.site
    assert assumed.size * 2 == assumed.largest
    assert half.interval.high_bytes - half.interval.likely_bytes >= assumed.moves_bytes > 0
    assert tenth.peak_allocated_bytes < half.peak_allocated_bytes
    assert tenth.interval.high_bytes == half.interval.high_bytes
    assert half.to_dict()["assumptions"][0]["moves_bytes"] == assumed.moves_bytes
    assert autofit.tune(picks, gpu_mem="6G", max_batch=64).best.batch_size == 64


@pytest.mark.process
@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ("without_shapes_small", "tiny.kernel.* cannot be run without a"),
        ("loops_small", "the step allocates differently at every batch size"),
        ("deadly_when_traced", "batch 4: the trial's process died"),
    ],
)
def test_a_step_that_has_no_curve_is_measured_all_the_same(workload: str, why: str) -> None:
    """Through the real search, with this process's own children in place of Ray's workers."""
    settings = resolve_settings(
        {
            "model": f"{WORKLOADS}:{workload}",
            "device": "cpu",
            "gpu_mem": "4G",
            "max_batch": 1,
            "threads": 1,
            "soak_steps": 0,
        },
        {},
        None,
    )
    result = session.run(settings, refer(settings.model), emit=ignore, connect=lambda *_: InlineDispatcher())
    assert re.search(f"no prediction guided the search.*: {why}", result.notes[0])
    assert result.best is not None
    assert (result.best.batch_size, result.best.evidence) == (1, Evidence.MEASURED_CPU)
    assert result.best.interval is result.estimate is None
    assert result.device.kind == "cpu"
    assert [outcome.verdict for outcome in result.trials] == [Verdict.FITS]


@pytest.mark.process
def test_two_workers_measure_on_the_cpu_and_the_winner_is_soaked_in_a_fresh_process(
    state_dir: Path,
) -> None:
    """The whole way with real children: prediction, parallel trials, a real limit, the soak."""
    options = {"model": f"{WORKLOADS}:grows", "device": "cpu", "gpu_mem": "1G", "threads": 1}
    settings = resolve_settings(options, {}, None)

    def search() -> autofit.TuneResult:
        dispatcher = InlineDispatcher(num_parallel=2)
        return session.run(settings, refer(settings.model), emit=ignore, connect=lambda *_: dispatcher)

    result = search()
    (entry,) = result.frontier
    assert result.best is not None
    assert result.best.soak_steps == 5
    assert entry.first_failing_batch == result.best.batch_size + 1
    verdicts = {(trial.batch_size, trial.verdict) for trial in result.trials}
    assert {(result.best.batch_size, Verdict.FITS), (entry.first_failing_batch, Verdict.OOM)} <= verdicts
    assert result.knee is not None
    document = json.loads(result.to_json())
    assert document["best"]["soak_steps"] == 5
    assert len(document["trials"]) == document["num_trials"] <= 8
    (kept,) = state_dir.glob("studies/answer-*.journal")
    kept.unlink()  # so that the study answers
    again = search()
    assert (again.best, again.trials, again.cached) == (result.best, result.trials, False)


def test_a_workload_that_fails_ends_with_its_own_words_and_traceback(state_dir: Path) -> None:
    with pytest.raises(WorkloadFailedError, match="LookupError: no such layer") as raised:
        autofit.tune(f"{WORKLOADS}:broken", gpu_mem="6G")
    assert (raised.value.kind, raised.value.exit_code) == ("workload", 4)
    assert "in _broken" in raised.value.traceback
    assert not (state_dir / "studies").exists()


def test_every_knob_is_a_keyword_of_an_estimate_and_is_told_in_its_json() -> None:
    knobs = Knobs(
        conv_algo="cudnn-benchmark",
        precision="amp-fp16",
        memory_format="channels_last",
        optimizer="adam",
        optimizer_impl="fused",
        set_to_none=False,
        allocator="max_split:64",
        grad_accumulation=2,
    )
    estimate = autofit.estimate(SMALL, batch_size=8, **knobs.to_dict())
    assert estimate.knobs == knobs
    assert json.loads(estimate.to_json())["knobs"] == knobs.to_dict()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: autofit.tune("davnet", gpu_mem="16G"), UnknownModelError, "davenet"),
        (lambda: autofit.tune("missing.py:w", gpu_mem="16G"), UnknownModelError, "missing.py"),
        (lambda: autofit.tune("davenet", gpu_mem="16G", input="3x64x64"), UsageError, "its own input"),
        (lambda: autofit.tune(SMALL, gpu="rtx-309"), UnknownGpuError, "rtx-3090"),
        (lambda: autofit.tune(SMALL, gpu_mem="16Q"), UsageError, "16Q"),
        (lambda: autofit.tune(SMALL, gpu_memory="16G"), UsageError, "gpu_mem"),
        (lambda: autofit.tune(SMALL, gpu_mem="16G", gpu="t4"), UsageError, "cannot be combined"),
        (lambda: autofit.tune(SMALL, gpu_mem="4G", device="cpu", conv_algo="cudnn"), UsageError, "onednn"),
        (lambda: autofit.tune(SMALL, gpu_mem="16G", objective="throughput"), UsageError, "no card is named"),
        (lambda: autofit.estimate(SMALL, batch_size=0), UsageError, "batch_size"),
        (
            lambda: autofit.estimate(SMALL, batch_size=2**63),
            UsageError,
            r"batch_size must be at most .*, got 9",
        ),
        (lambda: autofit.estimate(SMALL, batch_size=8, mode="eval"), UsageError, "train, infer"),
        (lambda: autofit.estimate(SMALL, batch_size=8, precision="fp4"), UsageError, "amp-bf16"),
        (lambda: autofit.estimate(SMALL, batch_size=8, memory_formt="nhwc"), UsageError, "memory_format"),
        (lambda: autofit.peak_curve(SMALL, optimizer_impl="apex"), UsageError, "foreach, fused, loop"),
        (lambda: autofit.tune(SMALL, gpu_mem="16G", memory_format="nhwc"), UsageError, "channels_last"),
        (lambda: autofit.estimate(SMALL, batch_size=8, gpu="rtx-309"), UnknownGpuError, "rtx-3090"),
        (lambda: autofit.peak_curve(SMALL, conv_algo="winograd"), UsageError, "cudnn-benchmark"),
    ],
)
def test_a_wrong_call_is_refused_with_the_next_step(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        call()
    assert isinstance(raised.value, UsageError)
    assert raised.value.exit_code == 2


def test_a_workload_object_makes_its_own_batches_and_has_to_pickle() -> None:
    workload = autofit.Workload(build_model=nn.Identity, make_batch=torch.zeros, loss=print)
    with pytest.raises(UsageError, match="leave out input, classes and task"):
        autofit.tune(workload, gpu_mem="6G", input="3x64x64")
    lock = threading.Lock()
    held = autofit.Workload(build_model=nn.Identity, make_batch=torch.zeros, loss=lambda m, b: lock)
    with pytest.raises(UsageError, match="cannot be sent to a worker"):
        autofit.estimate(held, batch_size=1)


WATCHED = """
import json, os, random, signal, sys
import numpy, torch
import autofit

def state():
    backends = torch.backends
    return {
        "cudnn": [backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic,
                  backends.cudnn.allow_tf32],
        "matmul": [backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()],
        "modes": [torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
                  torch.is_autocast_enabled("cuda"), str(torch.get_default_dtype()),
                  str(torch.get_default_device()), torch.get_num_threads()],
        "torch rng": torch.random.get_rng_state().tolist(),
        "random": repr(random.getstate()),
        "numpy": repr(numpy.random.get_state()),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "signals": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "workload modules": [name for name in sys.modules if "tiny_workloads" in name],
    }

workload, = sys.argv[1:]
torch.backends.cudnn.benchmark = True
torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
before = state()
result = autofit.tune(workload, gpu_mem="6G")
autofit.estimate(workload, batch_size=8)
after = state()
assert result.best is not None
print(json.dumps([key for key in before if before[key] != after[key]]))
"""


def test_a_call_changes_nothing_of_the_process_that_makes_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, SMALL], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_of_all_algorithms_those_that_apply_to_nothing_are_left_out_with_the_reason() -> None:
    result = autofit.tune(SMALL, gpu_mem="6G", conv_algo="all", max_batch=2)
    names = [entry.knobs.conv_algo for entry in result.frontier]
    assert {"cudnn", "im2col", "fft"} <= set(names)
    assert "matmul-1x1" not in names
    assert (
        "left out: matmul-1x1 applies to no convolution of the workload (its filter is 3×3, not one point)"
        in result.notes
    )


@pytest.mark.parametrize("device", [{}, {"device": "cpu"}])
def test_an_algorithm_that_was_named_and_applies_to_nothing_ends_the_search_before_it_begins(
    device: dict[str, str],
) -> None:
    options = {"model": SMALL, "gpu_mem": "6G", "conv_algo": "im2col,matmul-1x1", "max_batch": 2, **device}
    events: list[Event] = []
    with pytest.raises(UsageError, match=r"matmul-1x1 applies to no convolution .* choose another"):
        session.run(
            resolve_settings(options, {}, None),
            refer(SMALL),
            emit=events.append,
            connect=lambda *_: InlineDispatcher(),
        )
    assert not any(isinstance(event, TrialStarted) for event in events)


def test_a_search_over_several_knobs_has_a_boundary_for_each_and_marks_the_front(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path))
    result = autofit.tune(
        f"{WORKLOADS}:of_fp32",
        gpu="rtx-3090",
        conv_algo="native",
        search=["precision=fp32,bf16,amp-bf16", "optimizer_impl=loop,fused", "checkpointing=none,blocks"],
    )
    by_setting = {(entry.knobs.precision, entry.knobs.optimizer_impl): entry for entry in result.frontier}
    assert by_setting.keys() == {(p, o) for p in ("fp32", "amp-bf16") for o in ("loop", "fused")}
    for entry in result.frontier:
        assert entry.largest_batch is not None
        assert entry.first_failing_batch == entry.largest_batch + 1
    fastest = by_setting["amp-bf16", "fused"]
    assert fastest.dominated_by is None
    assert result.best is not None
    assert result.best.knobs == fastest.knobs
    assert by_setting["amp-bf16", "loop"].dominated_by == fastest.knobs
    assert any("left out: bf16 · " in note and "of fp32" in note for note in result.notes)
    assert any("checkpointing blocks applies to no part" in note for note in result.notes)
    assert autofit.TuneResult.from_dict(json.loads(result.to_json())).frontier == result.frontier


@pytest.mark.process
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler for C++ on the CPU")
def test_of_settings_that_are_compiled_alone_the_search_has_no_prediction() -> None:
    options = {
        "model": f"{WORKLOADS}:linear",
        "device": "cpu",
        "gpu_mem": "4G",
        "max_batch": 1,
        "threads": 1,
        "soak_steps": 0,
        "search": ["compile=false,true"],
    }
    result = session.run(
        resolve_settings(options, {}, None),
        refer(options["model"]),
        emit=ignore,
        connect=lambda *_: InlineDispatcher(),
    )
    assert any(note.startswith("no prediction guided 1 of 2 settings: ") for note in result.notes)
    assert {entry.knobs.compile: entry.largest_batch for entry in result.frontier} == {False: 1, True: 1}


def test_an_algorithm_that_rewrites_operators_is_refused_for_a_model_that_is_compiled() -> None:
    for options in ({"compile": True}, {"search": ["compile=false,true"]}):
        with pytest.raises(UsageError, match=r"--conv-algo im2col rewrites operators.* leave --compile out"):
            autofit.tune(SMALL, gpu_mem="6G", conv_algo="cudnn,im2col", **options)


def test_what_a_kernel_cannot_index_ends_the_search_where_memory_would_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path))
    workload = f"{WORKLOADS}:channel_by_channel"
    result = autofit.tune(workload, gpu="a100-80g", conv_algo="native")
    (entry,) = result.frontier
    assert (entry.largest_batch, entry.first_failing_batch) == (511, 512)
    assert "batch 512 cannot be run" in entry.reason
    assert "2,147,483,648 elements channel by channel" in entry.reason
    with pytest.raises(WorkloadFailedError, match="try --conv-algo cudnn"):
        autofit.estimate(workload, batch_size=512, conv_algo="native")
    assert autofit.estimate(workload, batch_size=511, conv_algo="native").peak_reserved_bytes > 4 * GIB
    beyond = autofit.tune(workload, gpu="a100-80g", conv_algo="cudnn", max_batch=600)
    assert beyond.best is not None
    assert beyond.best.batch_size == 600
