"""`autofit check`: one line, an exit code, and the document."""

from __future__ import annotations

import dataclasses
import json

import pytest

from autofit.errors import StorageError, UsageError, WorkloadFailedError
from autofit.explain.timing import GenerationTime, StepSeconds
from autofit.hardware.budget import make_budget
from autofit.questions.advice import Advice, Combination, TriedLever
from autofit.questions.check import Answer, CheckResult
from autofit.questions.levers import Effect
from autofit.settings.resolve import resolve_one_configuration
from autofit_workers.spec.protocol import Device, Verdict

GIB = 1024**3
CHECK = ("check", "--model", "davenet", "--batch-size", "94", "--gpu", "rtx-3090")


@pytest.fixture
def checked(results):
    """A stand-in for the prediction, its answer, and what it was asked."""
    estimate = results.estimate(94)
    seen = []

    def answer(verdict=Answer.FITS, likely=Verdict.FITS, **changes):
        result = CheckResult(
            workload=estimate.workload,
            mode=estimate.mode,
            batch_size=94,
            knobs=estimate.knobs,
            verdict=verdict,
            budget=make_budget(16 * GIB),
            interval=estimate.interval,
            device_peak_bytes=estimate.device_peak_bytes,
            device=Device(kind="cuda", name="rtx-3090"),
            evidence=estimate.evidence,
            likely_verdict=likely,
            calibration=estimate.calibration,
            workspace_bytes=estimate.workspace_bytes,
        )

        def check(settings, workload, batch_size, _emit):
            seen.append((settings, workload, batch_size))
            return dataclasses.replace(result, **changes)

        return check

    answer.seen = seen
    return answer


@pytest.mark.parametrize("named", [("gpt2",), ("--model", "gpt2"), ("gpt2", "--model", "gpt2")])
def test_the_model_is_an_argument_or_an_option(autofit, checked, named):
    assert autofit("check", *named, "--batch-size", "4", "--gpu", "t4", check=checked()).code == 0
    assert [workload.target for _, workload, _ in checked.seen] == ["gpt2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt2", "--model", "lstm"), "two models are named, gpt2 and --model lstm: leave one out"),
        (("gpt2", "lstm"), "unexpected extra argument (lstm)"),
        (("gpt2", "--script", "train.py"), "--model and --script cannot be combined"),
        (("train.py",), "run a training script as it is with --script train.py"),
    ],
)
def test_one_model_is_named(autofit, checked, arguments, says):
    finished = autofit("check", *arguments, "--batch-size", "4", "--gpu", "t4", check=checked())
    assert (finished.code, checked.seen) == (2, [])
    assert says in finished.err


def test_the_configuration_that_is_typed_is_the_one_that_is_checked(autofit, checked):
    options = "--conv-algo native --precision amp-bf16 --optimizer adam --mode infer --margin 5% --reserve 1G"
    assert autofit(*CHECK, *options.split(), check=checked()).code == 0
    ((settings, workload, batch_size),) = checked.seen
    assert (workload.target, batch_size) == ("davenet", 94)
    assert settings.conv_algos == ("native",)
    assert (settings.knobs.precision, settings.knobs.optimizer, settings.setup.mode) == (
        "amp-bf16",
        "adam",
        "infer",
    )
    assert (settings.gpu.key, str(settings.margin), settings.reserve_bytes) == ("rtx-3090", "0.05", GIB)
    assert settings.probe == "predict"


@pytest.mark.parametrize(
    ("verdict", "begins", "ends"),
    [
        (Answer.FITS, "fits: davenet at batch 94", "finds the largest batch"),
        (Answer.DOES_NOT_FIT, "does not fit: davenet", "finds the largest batch that fits"),
        (
            Answer.UNSURE,
            "unsure: davenet",
            "use the safe batch from `autofit tune --conv-algo cudnn --model davenet --gpu rtx-3090`",
        ),
    ],
)
def test_the_answer_is_one_line_and_an_exit_code(autofit, checked, verdict, begins, ends):
    finished = autofit(*CHECK, check=checked(verdict))
    assert finished.code == verdict.exit_code
    assert finished.out.count("\n") == 1
    assert finished.out.startswith(begins)
    assert finished.out.rstrip().endswith(ends)
    assert "on rtx-3090 with cudnn is predicted to reserve 12.00 GiB to 15.00 GiB of 14.90 GiB usable" in (
        finished.out
    )
    assert "`autofit tune --conv-algo cudnn --model davenet --gpu rtx-3090`" in finished.out


def test_the_search_it_points_to_is_for_the_same_configuration(autofit, checked):
    options = ("--precision", "amp-bf16", "--margin", "5%", "--conv-algo", "native")
    out = autofit(*CHECK, *options, check=checked()).out
    command = out.split("`")[1]
    assert command.startswith("autofit tune --conv-algo native --model davenet ")
    assert "--gpu rtx-3090 --precision amp-bf16 --margin 5%" in command


@pytest.mark.parametrize(
    ("likely", "said"),
    [
        (Verdict.FITS, "it likely fits: measure it"),
        (Verdict.THRASH, "it likely runs but thrashes: measure it"),
        (Verdict.OOM, "it likely runs out of memory: measure it"),
    ],
)
def test_what_is_unsure_says_what_is_likely(autofit, checked, likely, said):
    assert said in autofit(*CHECK, check=checked(Answer.UNSURE, likely)).out


def test_a_prediction_without_real_runs_to_go_by_says_so(autofit, checked, results):
    unknown = dataclasses.replace(results.estimate().calibration, num_rows=0)
    assert "(not compared with real runs)" in autofit(*CHECK, check=checked(calibration=unknown)).out
    assert "real runs" not in autofit(*CHECK, check=checked()).out


def test_where_no_card_is_named_the_line_says_what_is_spanned_and_how_to_narrow_it(autofit, checked, results):
    spanned = {"architectures": ("sm_80", "sm_75", "sm_120")}
    assert "(covers sm_75, sm_80, sm_120: --gpu narrows it)" in autofit(*CHECK, check=checked(**spanned)).out
    spanned["calibration"] = dataclasses.replace(results.estimate().calibration, num_rows=0)
    text = autofit(*CHECK, check=checked(**spanned)).out
    assert "(not compared with real runs; covers sm_75, sm_80, sm_120: --gpu narrows it)" in text
    assert "narrows" not in autofit(*CHECK, check=checked(architectures=("sm_75",))).out


def test_the_line_says_of_which_batch_and_of_how_many_ranks_it_is(autofit, checked):
    options = ("--worst-case", "--parallel", "ddp:4")
    result = checked(batch_kind="worst", num_ranks=4, parallel="ddp:4")
    line = autofit(*CHECK, *options, check=result).out
    assert "with cudnn and worst-case batches on each of 4 ranks, 376 samples a step, is" in line
    assert "--worst-case --parallel ddp:4` finds the largest batch" in line
    assert "ranks" not in autofit(*CHECK, check=checked()).out


def test_the_line_says_when_the_first_token_of_a_generation_comes_and_how_fast_others(autofit, checked):
    first = StepSeconds(low=0.01, likely=0.02, high=0.03, low_80=0.015, high_80=0.025)
    times = GenerationTime(first_token_seconds=first, token_seconds=first, tokens_per_second=400.0)
    said = "the first token likely takes 20 ms (10 to 30 ms)"
    line = autofit(*CHECK, check=checked(generation=times)).out
    assert f"{said}, later ones come at 400 tokens a second; " in line
    alone = dataclasses.replace(times, token_seconds=None, tokens_per_second=None)
    assert f"{said}; " in autofit(*CHECK, check=checked(generation=alone)).out


@pytest.mark.parametrize(
    ("verdict", "code"), [(Answer.FITS, 0), (Answer.DOES_NOT_FIT, 3), (Answer.UNSURE, 6)]
)
def test_json_prints_exactly_one_document(autofit, checked, verdict, code):
    finished = autofit(*CHECK, "--json", check=checked(verdict, Verdict.THRASH))
    assert finished.code == code
    document = finished.document
    assert document.keys() == {
        "schema",
        "workload",
        "mode",
        "batch_size",
        "knobs",
        "verdict",
        "budget",
        "interval",
        "device_peak_bytes",
        "device",
        "epoch_samples",
        "epoch_seconds",
        "evidence",
        "likely_verdict",
        "need",
        "limit_bytes",
        "num_alloc_retries",
        "would_thrash",
        "calibration",
        "workspace_bytes",
        "convolves",
        "advice",
        "architectures",
        "batch_kind",
        "model_class",
        "num_kinds_of_ranks",
        "num_parameters",
        "num_ranks",
        "parallel",
        "rank",
        "ranks",
        "samples_per_second",
        "step_seconds",
        "step_time_note",
        "generation",
        "versions",
        "seen",
        "growth",
        "lengths",
    }
    assert (document["schema"], document["verdict"]) == ("autofit.check/1", verdict.value)
    assert (document["would_thrash"], document["evidence"]) == (True, "predicted")
    assert document["budget"]["usable_bytes"] == make_budget(16 * GIB).usable_bytes
    assert document["interval"] == {
        "low_bytes": 12 * GIB,
        "likely_bytes": 14 * GIB,
        "high_bytes": 15 * GIB,
    }


@pytest.mark.parametrize(
    ("error", "code"), [(WorkloadFailedError("it broke", traceback="line 1"), 4), (StorageError("full"), 5)]
)
def test_what_fails_is_an_error_document_with_its_exit_code(autofit, error, code):
    def fail(*_):
        raise error

    finished = autofit(*CHECK, "--json", check=fail)
    assert finished.code == code
    assert finished.document["schema"] == "autofit.error/1"
    assert finished.document["exit_code"] == code


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--conv-algo", "all"), "a check takes one algorithm"),
        (("--batch-size", "0"), "0 is not in the range"),
        (("--gpu", "rtx-309"), "Did you mean rtx-3090"),
        (("--gpu-mem", "16G"), "cannot be combined"),
        (("--reserve", "40G"), "nothing is left"),
    ],
)
def test_what_cannot_be_checked_is_a_usage_error(autofit, options, said):
    finished = autofit(*CHECK, *options, "--json")
    assert finished.code == 2
    assert said in finished.document["message"]


def test_what_only_a_search_can_be_told_is_refused():
    with pytest.raises(UsageError, match="a check does not take max_batch, risk"):
        resolve_one_configuration({"model": "davenet", "risk": "likely", "max_batch": 8}, "a check")
    assert resolve_one_configuration({"model": "davenet", "gpu": "t4"}, "a check").gpu is not None


def advised(options, *, saved_bytes=3 * GIB):
    combination = None if options is None else Combination(options=options, peak_reserved_bytes=11 * GIB)
    fused = {"name": "optimizer_impl", "value": "fused", "how": "--optimizer-impl fused"}
    blocks = {"name": "checkpointing", "value": "blocks", "how": "--checkpointing blocks"}
    return Advice(
        batch_size=94,
        peak_reserved_bytes=15 * GIB,
        levers=(
            TriedLever(**blocks, saved_bytes=saved_bytes, fits=options is not None, effect=Effect.SLOWER),
            TriedLever(**fused, saved_bytes=GIB, fits=options == ("--optimizer-impl fused",)),
        ),
        combination=combination,
        is_complete=options is not None,
    )


def test_what_may_help_stands_below_with_the_whole_command_that_fits(autofit, checked):
    options = ("--optimizer-impl fused",)
    finished = autofit(*CHECK, "--margin", "5%", check=checked(Answer.DOES_NOT_FIT, advice=advised(options)))
    first, *below = finished.out.splitlines()
    assert first.startswith("does not fit: davenet at batch 94")
    assert " ".join(" ".join(below).split()).startswith(
        "What may help · --checkpointing blocks saves 3.00 GiB of 15.00 GiB in a slower step: batch 94 fits "
        "· --optimizer-impl fused saves 1.00 GiB of 15.00 GiB: batch 94 fits "
        "· --optimizer-impl fused is the gentlest of those that are enough"
    )
    command = below[-1].strip()
    assert command == (
        "autofit check --model davenet --gpu rtx-3090 --margin 5% --batch-size 94 --optimizer-impl fused"
    )


def test_several_changes_are_told_together_and_where_none_helps_that_is_said(autofit, checked):
    both = advised(("--optimizer-impl fused", "--checkpointing blocks"))
    text = autofit(*CHECK, check=checked(Answer.UNSURE, advice=both)).out
    assert "--optimizer-impl fused --checkpointing blocks together: batch 94 fits in 11.00 GiB" in (
        " ".join(text.split())
    )
    assert text.endswith(" --batch-size 94 --optimizer-impl fused --checkpointing blocks\n")
    none = autofit(*CHECK, check=checked(Answer.UNSURE, advice=advised(None))).out
    assert "no combination of such options that was tried in the time there was makes batch 94 fit" in (
        " ".join(none.split())
    )
    assert "autofit check" not in none


def test_the_document_has_the_advice_and_prints_nothing_beside_it(autofit, checked):
    given = advised(("--optimizer-impl fused",))
    document = autofit(*CHECK, "--json", check=checked(Answer.DOES_NOT_FIT, advice=given)).document
    assert document["advice"]["combination"] == {
        "options": ["--optimizer-impl fused"],
        "peak_reserved_bytes": 11 * GIB,
        "effect": "none",
    }
    assert [lever["effect"] for lever in document["advice"]["levers"]] == ["slower", "none"]
    assert autofit(*CHECK, "--json", check=checked()).document["advice"] is None


@pytest.mark.parametrize(
    ("batch_size", "code", "verdict"), [("64", 0, "fits"), ("40000000", 3, "does-not-fit")]
)
def test_a_workload_of_the_users_is_checked_for_real(autofit, workload_file, batch_size, code, verdict):
    finished = autofit(
        "check",
        "--model",
        f"{workload_file}:healthy",
        "--batch-size",
        batch_size,
        "--gpu-mem",
        "2G",
        "--json",
    )
    assert finished.code == code, finished.err
    assert finished.err.startswith(f"tracing batch {batch_size}\n")
    assert ("trying levers\n" in finished.err) == (verdict != "fits")
    document = json.loads(finished.out)
    assert (document["advice"] is None) == (verdict == "fits")
    assert (document["verdict"], document["calibration"]["model_class"]) == (
        verdict,
        "without-convolutions",
    )
    assert document["calibration"]["cards"] == "any"
    assert document["device"]["name"] == "2.00 GiB card"


def test_a_workload_that_cannot_be_predicted_is_no_answer(autofit, workload_file):
    finished = autofit(
        "check",
        "--model",
        f"{workload_file}:without_shapes",
        "--batch-size",
        "8",
        "--gpu-mem",
        "2G",
        "--json",
    )
    assert finished.code == 4
    assert finished.document["kind"] == "unsupported"


def test_the_time_of_a_step_and_of_an_epoch_are_told_where_they_are_stated(autofit, checked):
    seconds = StepSeconds(low=0.4, likely=0.5, high=0.6, low_80=0.45, high_80=0.55)
    answer = checked(step_seconds=seconds, samples_per_second=188.0, epoch_samples=188_000)
    out = autofit(*CHECK, "--samples", "188000", check=answer).out
    assert "a step likely takes 500 ms (400 to 600 ms), 188 samples a second" in out
    assert "an epoch 16.7 min (13.3 to 20 min)" in out
    document = json.loads(autofit(*CHECK, "--json", check=answer).out)
    assert document["step_seconds"]["low_80"] == 0.45
    assert (document["epoch_samples"], document["epoch_seconds"]) == (188_000, pytest.approx(1000))


def test_no_seconds_are_told_where_none_are_stated(autofit, checked):
    note = "no step time is given, as there are none"
    out = autofit(
        *CHECK, "--samples", "188000", check=checked(step_time_note=note, epoch_samples=188_000)
    ).out
    assert f"how long an epoch takes is not known ({note}); " in out
    assert "samples a second" not in out
