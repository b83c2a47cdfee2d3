"""The table of the ways of training together that a search compared."""

from __future__ import annotations

import dataclasses

from autofit.tuning.compared import ParallelAnswer
from autofit_workers.spec.knobs import Knobs

TUNE = ("tune", "--model", "davenet", "--gpu-mem", "16G", "--search", "parallel=ddp:8,fsdp:8,tp:8")


def compared(results, **changes):
    """fsdp:8 is the answer with 118, ddp:8 has 40, tp:8 has no plan."""
    own = results.answer(num_ranks=8, parallel="fsdp:8", **changes)
    best = dataclasses.replace(own.best, parallel="fsdp:8", samples_per_step=944)
    of_fsdp = results.entry("native", 118, 119, parallel="fsdp:8", samples_per_step=944)
    of_ddp = results.entry("native", 40, 41, parallel="ddp:8", samples_per_step=320)
    searched = {"budget": own.budget, "study": "s"}
    parallels = (
        ParallelAnswer(parallel="ddp:8", num_ranks=8, best=None, frontier=(of_ddp,), **searched),
        ParallelAnswer(parallel="fsdp:8", num_ranks=8, best=best, frontier=(of_fsdp,), **searched),
        ParallelAnswer(parallel="tp:8", num_ranks=8, refused="the model has no plan"),
    )
    return dataclasses.replace(own, best=best, frontier=(of_fsdp,), parallels=parallels)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_row_says_the_batch_of_all_ranks_and_of_one_the_largest_first(autofit, results):
    text = autofit(*TUNE, tune=lambda *_: compared(results)).out
    shown = [row for row in rows(text) if row[:1] in (["fsdp:8"], ["ddp:8"])]
    assert [row[:1] + row[-7:] for row in shown] == [
        ["fsdp:8", "944", "118", "14.00", "14.50", "15.02", "119", "predicted"],
        ["ddp:8", "320", "40", "14.00", "14.50", "15.02", "41", "predicted"],
    ]
    assert "tp:8: the model has no plan" in text
    assert "That is 8 ranks with a batch of 118 each: 944 samples a step." in text


def test_samples_a_second_are_shown_where_any_are_known(autofit, results):
    found = compared(results)
    ddp, fsdp, refused = found.parallels
    timed = dataclasses.replace(fsdp.frontier[0], predicted_samples_per_second=1234.5)
    parallels = (ddp, dataclasses.replace(fsdp, frontier=(timed,)), refused)
    text = autofit(*TUNE, tune=lambda *_: dataclasses.replace(found, parallels=parallels)).out
    shown = {row[0]: row[-5] for row in rows(text) if row[:1] in (["fsdp:8"], ["ddp:8"])}
    assert shown == {"fsdp:8": "1,234", "ddp:8": "–"}
    assert "usable" not in next(line for line in text.splitlines() if "a second" in line)
    assert "a second" not in autofit(*TUNE, tune=lambda *_: found).out


def test_settings_are_named_where_they_differ(autofit, results):
    found = compared(results)
    fsdp = found.parallels[1]
    checkpointed = dataclasses.replace(
        fsdp.frontier[0], knobs=Knobs(conv_algo="native", checkpointing="blocks"), largest_batch=200
    )
    both = dataclasses.replace(fsdp, frontier=(fsdp.frontier[0], checkpointed))
    parallels = (found.parallels[0], both, found.parallels[2])
    text = autofit(*TUNE, tune=lambda *_: dataclasses.replace(found, parallels=parallels)).out
    assert "checkpointing" in text
    assert "parallel, with" in text


def test_the_report_is_of_the_ranks_that_are_the_answer(autofit, results, tmp_path):
    seen = []

    def report(settings, _workload, result, _emit):
        seen.append((str(settings.setup.parallel), settings.parallels, result.parallel))
        raise KeyboardInterrupt

    autofit(
        *TUNE,
        "--report",
        str(tmp_path / "page.html"),
        tune=lambda *_: compared(results),
        report_on_search=report,
    )
    assert seen == [("fsdp:8", (), "fsdp:8")]
