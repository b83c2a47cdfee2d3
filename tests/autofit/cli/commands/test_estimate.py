"""`autofit estimate`: one configuration, in text and as a document."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from autofit.explain.timing import StepSeconds
from autofit.predict.predictor import Predictor
from autofit.questions.levers import levers
from autofit.questions.what_if import LeverResult, WhatIf
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from tests.autofit.timed import UNMEASURED_TIMES, timed_trace

TINY = f"{Path(__file__).parents[2] / 'tiny_workloads.py'}:small"
ESTIMATE = ("estimate", "--model", "davenet", "--batch-size", "94")


@pytest.fixture
def asked(results):
    """A stand-in for the prediction, and what it was asked."""
    seen = []

    def predict(settings, workload, batch_size, _emit):
        seen.append((settings, workload, batch_size))
        return results.estimate(batch_size)

    return predict, seen


def test_the_configuration_that_is_typed_is_the_one_that_is_asked_for(autofit, asked):
    predict, seen = asked
    options = (
        "--conv-algo native --precision amp-bf16 --optimizer adam --mode infer --gpu t4 --method simulate "
        "--memory-format channels_last --optimizer-impl fused --set-to-none false"
    )
    assert autofit(*ESTIMATE, *options.split(), estimate=predict).code == 0
    ((settings, workload, batch_size),) = seen
    assert (workload.target, batch_size) == ("davenet", 94)
    assert settings.conv_algos == ("native",)
    assert (settings.knobs.precision, settings.knobs.optimizer, settings.setup.mode) == (
        "amp-bf16",
        "adam",
        "infer",
    )
    assert settings.gpu.key == "t4"
    assert settings.configuration("an estimate") == Knobs(
        conv_algo="native",
        precision="amp-bf16",
        memory_format="channels_last",
        optimizer="adam",
        optimizer_impl="fused",
        set_to_none=False,
    )


def test_the_text_names_the_knobs_that_are_not_the_default(autofit, results):
    def predict(settings, _workload, batch_size, _emit):
        return dataclasses.replace(results.estimate(batch_size), knobs=settings.knobs)

    options = "--memory-format channels_last --optimizer adam --optimizer-impl fused --set-to-none no"
    text = " ".join(autofit(*ESTIMATE, *options.split(), estimate=predict).out.split())
    assert "cudnn · fp32 · channels_last · adam (fused) · gradients kept as zeros · train" in text


def test_unless_told_it_is_pytorchs_default_algorithm(autofit, asked):
    predict, seen = asked
    autofit(*ESTIMATE, estimate=predict)
    assert seen[0][0].one_conv_algo("an estimate") == "cudnn"


def test_the_text_keeps_the_three_peaks_apart(autofit, asked):
    text = " ".join(autofit(*ESTIMATE, estimate=asked[0]).out.split())
    assert "davenet at batch 94 · cudnn · fp32 · the workload's optimizer · train" in text
    assert "allocated peak 10.00 GiB 10,737,418,240 bytes" in text
    assert "reserved peak 14.00 GiB 15,032,385,536 bytes" in text
    assert "at least 12.00 GiB" in text
    assert "at most 15.00 GiB" in text
    assert "device peak 14.50 GiB 15,569,256,448 bytes" in text
    assert "no --gpu given: sm_80 is assumed, and the range covers sm_75, sm_80" in text
    assert "sm_120; name the card to narrow it" in text
    assert "· predicted, not measured" in text


def test_a_certain_prediction_has_no_interval(autofit, results):
    def predict(_settings, _workload, batch_size, _emit):
        estimate = results.estimate(batch_size)
        exact = dataclasses.replace(estimate.interval, low_bytes=15 * 1024**3)
        return dataclasses.replace(estimate, interval=exact)

    assert "at most" not in autofit(*ESTIMATE, estimate=predict).out


def test_a_card_is_named_with_its_assumptions(autofit, asked):
    text = " ".join(autofit(*ESTIMATE, "--gpu", "rtx-4090", estimate=asked[0]).out.split())
    assert "NVIDIA GeForce RTX 4090 (sm_89) · predicted" in text
    assert "narrow it" not in text
    assert "CUDA context: 585 MiB assumed for sm_89" in text


def test_what_the_interval_rests_on_is_told(autofit, asked):
    text = " ".join(autofit(*ESTIMATE, estimate=asked[0]).out.split())
    said = (
        "from the smallest to the largest workspaces, widened by -2.0% and +3.0%, the errors of 120 real runs"
    )
    assert f"95% range: {said}" in text


def test_no_line_of_the_text_is_cut_or_longer_than_the_terminal(autofit, asked):
    text = autofit(*ESTIMATE, estimate=asked[0]).out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_json_prints_the_estimate(autofit, asked, results):
    finished = autofit(*ESTIMATE, "--json", estimate=asked[0])
    assert finished.document["schema"] == "autofit.estimate/1"
    assert finished.document["workspace_bytes"] == {"low": 0, "likely": 1024**3, "high": 2 * 1024**3}
    assert finished.document["calibration"]["model_class"] == "convolutional-dense"
    assert finished.document["breakdown"] == dataclasses.asdict(results.estimate().breakdown)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--conv-algo", "all"), "an estimate takes one algorithm"),
        (("--conv-algo", "cudnn,native"), "an estimate takes one algorithm"),
        (("--conv-algo", "cudn"), "Did you mean cudnn"),
        (("--batch-size", "0"), "0 is not in the range"),
        (("--method", "guess"), "'guess' is not"),
        (("--gpu", "rtx-309"), "Did you mean rtx-3090"),
    ],
)
def test_what_cannot_be_estimated_is_a_usage_error(autofit, options, said):
    finished = autofit(*ESTIMATE, *options, "--json")
    assert finished.code == 2
    assert finished.document["kind"] in ("usage", "unknown-gpu")
    assert said in finished.document["message"]


def test_a_module_of_the_users_is_estimated_with_the_shape_of_its_input(autofit, tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def net():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))\n"
    )
    model = ("--model", f"{file}:net", "--input", "3x8x8", "--classes", "10", "--optimizer", "adam")
    finished = autofit("estimate", *model, "--batch-size", "8", "--json")
    assert finished.code == 0, finished.err
    breakdown = finished.document["breakdown"]
    assert breakdown["parameters"] >= (3 * 8 * 8 + 1) * 10 * 4
    assert finished.document["peak_reserved_bytes"] >= finished.document["peak_allocated_bytes"]
    assert finished.err == "tracing batch 8\n"


def test_a_summary_and_the_levers_go_with_the_estimate_in_one_document(autofit, workload_file):
    command = ("estimate", "--model", f"{workload_file}:healthy", "--batch-size", "4", "--gpu", "t4")
    finished = autofit(*command, "--method", "summary", "--what-if", "--json", "--quiet")
    assert finished.code == 0, finished.err
    document = finished.document
    assert (document["schema"], document["method"]) == ("autofit.estimate/1", "summary")
    (layer,) = document["summary"]["parts"][0]["layers"]
    assert layer == {
        "layer": "Linear-1", "module": "", "output_shapes": [[4, 8]], "num_parameters": 64 * 8 + 8
    }  # fmt: skip
    assert document["summary"]["total_bytes"] == 4 * (4 * 64 + 2 * 4 * 8 + 64 * 8 + 8)
    assert document["difference"]["allocated_bytes"] == document["peak_allocated_bytes"]
    by_lever = {(each["name"], each["value"]): each for each in document["what_if"]}
    bf16 = by_lever["precision", "bf16"]
    assert bf16["saved_bytes"] == document["peak_reserved_bytes"] - bf16["peak_reserved_bytes"]
    assert bf16["knobs"]["precision"] == "bf16"
    assert by_lever["conv_algo", "fft"]["reason"]
    assert document["advice"] is None


def test_what_levers_do_to_the_speed_is_told_in_whole_words(autofit, results):
    base = dataclasses.replace(results.estimate(), step_seconds=SECONDS, samples_per_second=188.0)
    long_named = max(levers(Knobs()), key=lambda lever: len(lever.label))
    slower = LeverResult(lever=long_named, saved_bytes=10**9, estimate=base, relative_step_time=1.42)
    answer = WhatIf(base=base, results=(slower,))
    text = autofit(*ESTIMATE, "--what-if", what_if=lambda *_asked: answer).out
    assert "1.4 × slower" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_where_it_does_not_fit_the_levers_end_with_the_command_that_does(autofit):
    command = ("estimate", "--model", TINY, "--batch-size", "20", "--what-if", "--quiet")
    card = ("--gpu", "rtx-2060")
    document = autofit(*command, *card, "--json").document
    advice = document["advice"]
    assert advice["combination"]["options"] == ["--batch-size 10 --grad-accumulation 2"]
    assert advice["peak_reserved_bytes"] == document["need"]["high_bytes"]
    out = autofit(*command, *card).out
    assert "Batch 20 may not fit on rtx-2060" in out
    last = out.splitlines()[-1].strip()
    smaller = "--batch-size 10 --grad-accumulation 2"
    assert last == f"autofit check --model {TINY} --gpu rtx-2060 {smaller}"
    assert autofit(*last.split()[1:], "--quiet").code == 0
    assert autofit(*command, "--json").document["advice"] is None


def test_the_texts_of_summary_and_levers_lead_from_layers_to_peaks(autofit, workload_file):
    command = ("estimate", "--model", f"{workload_file}:healthy", "--batch-size", "4", "--gpu", "t4")
    text = " ".join(autofit(*command, "--method", "summary", "--what-if", "--quiet").out.split())
    assert "at batch 4, counted like torchsummary" in text
    assert "Linear-1 [4, 8] 520" in text
    assert "batch 4 one sample total params 520 input size (MB) 0.00 0.00" in text
    assert "− gradients of all outputs at once" in text
    assert "= device peak" in text
    assert "What if: each lever on its own, against" in text
    assert "no change of memory: " in text
    assert "Does not apply" in text


def test_a_report_is_written_beside_the_document(autofit, workload_file, tmp_path):
    page = tmp_path / "page.html"
    command = ("estimate", "--model", f"{workload_file}:healthy", "--batch-size", "4", "--gpu", "t4")
    finished = autofit(*command, "--report", str(page), "--json", "--quiet")
    assert finished.code == 0, finished.err
    assert finished.document["schema"] == "autofit.estimate/1"
    assert finished.err == f"report written to {page}\n"
    assert "mine.py:healthy at batch 4 is likely to reserve" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("place", [".", "missing/page.html"])
def test_a_report_that_cannot_be_written_ends_the_command_before_the_work(autofit, asked, tmp_path, place):
    predict, seen = asked
    finished = autofit(*ESTIMATE, "--report", str(tmp_path / place), "--json", estimate=predict)
    assert finished.code == 5
    assert f"cannot write {tmp_path / place}" in finished.document["message"]
    assert seen == []


# ── time ────────────────────────────────────────────────────────────────────────────────────────

SECONDS = StepSeconds(low=0.4, likely=0.5, high=0.6, low_80=0.45, high_80=0.55)
EPOCH = (*ESTIMATE, "--gpu", "rtx-3090", "--samples", "188000")


def test_stated_times_are_told_with_both_intervals_and_an_epoch(autofit, results):
    timed = dataclasses.replace(results.estimate(94), step_seconds=SECONDS, samples_per_second=188.0)
    out = autofit(*EPOCH, estimate=lambda *_: timed).out
    for said in (
        "Time, predicted",
        "500 ms",
        "400 to 600 ms with 95 %",
        "450 to 550 ms with 80 %",
        "16.7 min",
    ):
        assert said in out
    document = autofit(*EPOCH, "--json", estimate=lambda *_: timed).document
    assert document["step_seconds"] == dataclasses.asdict(SECONDS)
    assert document["epoch_seconds"] == pytest.approx(1000)


def test_a_prediction_without_rows_behind_it_prints_no_seconds(autofit, workload, worker):
    worker.trace_at = timed_trace

    def predict(settings, _workload, batch_size, _emit):
        predictor = Predictor(workload, worker, time_residuals=UNMEASURED_TIMES, plans=FormulaPlans)
        return predictor.estimate(settings.configuration("an estimate"), settings.card, batch_size)

    document = autofit(*EPOCH, "--json", estimate=predict).document
    assert (document["step_seconds"], document["samples_per_second"]) == (None, None)
    assert document["epoch_seconds"] is None
    out = " ".join(autofit(*EPOCH, estimate=predict).out.split())
    assert "no step time is given, as there are no measured times of this card" in out
    assert "Time, predicted" not in out
    assert "samples a second" not in out


@pytest.mark.skipif(
    any(find_spec(library) is None for library in ("transformers", "bitsandbytes")),
    reason="wants transformers and bitsandbytes",
)
def test_a_model_whose_states_are_too_much_is_told_an_optimizer_with_fewer(autofit, tmp_path):
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 6,
        "n_head": 8,
        "vocab_size": 120_000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ("--model", f"hf:{tmp_path}/config.json", "--optimizer", "adamw", "--batch-size", "1")
    command = ("check", *model, "--seq-len", "256", "--gpu", "t4", "--reserve", "11.6G", "--quiet")
    told = autofit(*command)
    assert told.code == 3
    last = told.out.splitlines()[-1].strip()
    assert "8bit" in last
    assert "--optimizer adamw " not in last
    assert autofit(*last.split()[1:], "--quiet").code == 0
