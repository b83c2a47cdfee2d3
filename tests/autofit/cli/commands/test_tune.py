"""`autofit tune`: what it passes on, prints and exits with; what stands behind it is a stand-in."""

from __future__ import annotations

import http.client
import re
import urllib.parse

import click
import pytest

from autofit.cli.commands.tune import tune
from autofit.errors import DispatchError, StorageError, WorkloadFailedError
from autofit.events import TrialFinished, TrialStarted, TuneStarted
from autofit.report.html.page import Page
from autofit.settings.goals import Risk
from autofit.settings.options import OPTIONS
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef

SPEC = TrialSpec(workload=WorkloadRef(kind="builtin", target="davenet"), batch_size=94, probe=Probe.PREDICT)
STARTED = TuneStarted(workload="davenet", gpu="16g", budget_bytes=1, study="davenet-1", started_seconds=1.0)
TUNE = ("tune", "--model", "davenet", "--gpu-mem", "16G")


def returning(result):
    return lambda _settings, _workload, _emit: result


def test_every_setting_is_an_option_of_the_same_name():
    options = [param for param in tune.params if isinstance(param, click.Option)]
    names = {option.lstrip("-") for param in options for option in param.opts}
    aliases = {alias for option in OPTIONS.values() for alias in option.aliases}
    assert names - {
        "config",
        "conv-plan",
        "report",
        "write",
        "json",
        "quiet",
        "q",
        "job",
        "help-all",
        "warm",
    } == {
        *OPTIONS,
        *aliases,
    }


def test_what_is_typed_reaches_the_search_converted(autofit, results):
    seen = {}

    def search(settings, workload, _emit):
        seen.update(settings=settings, workload=workload)
        return results.answer()

    options = "--conv-algo cudnn,native --precision amp-bf16 --margin 5% --reserve 2G --max-batch 64 --fresh"
    options += " --risk worst"
    assert autofit(*TUNE, *options.split(), tune=search).code == 0
    assert seen["workload"] == WorkloadRef(kind="builtin", target="davenet")
    settings = seen["settings"]
    assert settings.gpu_mem_bytes == 16 * 1024**3
    assert settings.conv_algos == ("cudnn", "native")
    assert str(settings.margin) == "0.05"
    assert settings.risk is Risk.WORST
    assert (settings.reserve_bytes, settings.max_batch, settings.fresh) == (2 * 1024**3, 64, True)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    autofit, results, tmp_path, monkeypatch
):
    file = tmp_path / "settings.toml"
    file.write_text('[tune]\nmodel = "gpt2"\nmax-batch = 1\nmode = "infer"\nfresh = true\n')
    monkeypatch.setenv("AUTOFIT_MAX_BATCH", "2")
    monkeypatch.setenv("AUTOFIT_PRECISION", "amp-bf16")
    seen = []

    def search(settings, _workload, _emit):
        seen.append(settings)
        return results.answer()

    autofit(*TUNE, "--precision", "fp32", "--no-fresh", "--config", str(file), tune=search)
    (settings,) = seen
    assert (settings.model, settings.knobs.precision) == ("davenet", "fp32")
    assert (settings.max_batch, settings.setup.mode, settings.fresh) == (2, "infer", False)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("--compile", "davenet"), True),
        (("davenet", "--compile"), True),
        (("--compile", "--batch-size-cap", "davenet"), None),
        (("davenet", "--compile", "mode=reduce-overhead"), "mode=reduce-overhead"),
        (("--compile=mode=max-autotune", "davenet"), "mode=max-autotune"),
        (("davenet", "--compile=mode=default"), True),
        (("davenet", "--compile=mode=max-autotune", "--no-compile"), False),
        (("davenet", "--compile", "mode=fastest"), None),
    ],
)
def test_a_mode_of_compile_may_be_left_out_and_is_never_mistaken_for_the_model(
    autofit, results, arguments, value
):
    seen = []

    def search(settings, _workload, _emit):
        seen.append(settings)
        return results.answer()

    finished = autofit("tune", "--gpu-mem", "16G", *arguments, tune=search)
    if value is None:
        assert (finished.code, seen) == (2, [])
        return
    assert [(settings.model, settings.knobs.compile) for settings in seen] == [("davenet", value)]


def test_a_missing_settings_file_is_a_usage_error(autofit, tmp_path):
    finished = autofit(*TUNE, "--config", str(tmp_path / "none.toml"))
    assert finished.code == 2
    assert "cannot read the settings file" in finished.err


def test_the_text_is_on_stdout_and_exits_with_0(autofit, results):
    finished = autofit(*TUNE, tune=returning(results.answer()))
    assert (finished.code, finished.err) == (0, "")
    assert "--gpu-mem 16G = 17,179,869,184 bytes" in finished.out
    assert "fits at batch 118" in finished.out


def test_json_prints_the_document_and_nothing_else(autofit, results):
    finished = autofit(*TUNE, "--json", tune=returning(results.answer()))
    assert finished.code == 0
    assert finished.out == results.answer().to_json() + "\n"
    assert finished.document["schema"] == "autofit.tune/1"


def test_nothing_fits_exits_with_3_and_a_document_without_a_best(autofit, results):
    search = returning(results.nothing_fits())
    finished = autofit(*TUNE, "--json", tune=search)
    assert finished.code == 3
    assert finished.document["schema"] == "autofit.tune/1"
    assert finished.document["best"] is None
    finished = autofit(*TUNE, tune=search)
    assert finished.code == 3
    assert "Nothing fits" in finished.out


def test_progress_goes_to_stderr_and_quiet_turns_it_off(autofit, results):
    def search(_settings, _workload, emit):
        emit(STARTED)
        return results.answer()

    assert "study davenet-1" in autofit(*TUNE, "--json", tune=search).err
    assert autofit(*TUNE, "--quiet", tune=search).err == ""


def failing(error):
    def search(_settings, _workload, _emit):
        raise error

    return search


def test_a_failure_of_the_workload_shows_its_traceback_above_the_sentence(autofit):
    error = WorkloadFailedError("the loss is no scalar", kind="user", traceback="Traceback:\n  mine.py:3\n")
    finished = autofit(*TUNE, tune=failing(error))
    assert (finished.code, finished.out) == (4, "")
    assert finished.err == "Traceback:\n  mine.py:3\nerror: the loss is no scalar\n"
    finished = autofit(*TUNE, "--json", tune=failing(error))
    assert finished.document == {
        "schema": "autofit.error/1",
        "kind": "user",
        "message": "the loss is no scalar",
        "exit_code": 4,
    }
    assert finished.err == "Traceback:\n  mine.py:3\n"


def test_a_failure_of_the_infrastructure_exits_with_5(autofit):
    finished = autofit(*TUNE, tune=failing(StorageError("the disk is full: free some")))
    assert (finished.code, finished.err) == (5, "error: the disk is full: free some\n")


def interrupted_search(results, num_trials):
    def search(_settings, _workload, emit):
        emit(STARTED)
        for trial in range(num_trials):
            emit(
                TrialFinished(
                    study=STARTED.study, trial=trial, spec=SPEC, outcome=results.outcome("cudnn", 94, 1)
                )
            )
        emit(TrialStarted(study=STARTED.study, trial=num_trials, spec=SPEC, started_seconds=1.0))
        raise KeyboardInterrupt

    return search


@pytest.mark.parametrize(("num_trials", "said"), [(1, "1 trial"), (3, "3 trials")])
def test_ctrl_c_says_what_the_study_keeps_and_how_to_go_on(autofit, results, num_trials, said):
    finished = autofit(*TUNE, "--quiet", tune=interrupted_search(results, num_trials))
    assert (finished.code, finished.out) == (130, "")
    assert finished.err == (
        f"error: interrupted after {said}, kept in study davenet-1: the same command continues it, "
        "--fresh starts over\n"
    )


def test_ctrl_c_is_a_document_with_json(autofit, results):
    finished = autofit(*TUNE, "--json", tune=interrupted_search(results, 2))
    assert finished.code == 130
    assert (finished.document["kind"], finished.document["exit_code"]) == ("interrupted", 130)


def test_metrics_show_the_trials_while_the_search_runs(autofit, results, capsys):
    scraped = []

    def search(_settings, _workload, emit):
        emit(TrialFinished(study=STARTED.study, trial=0, spec=SPEC, outcome=results.outcome("cudnn", 94, 1)))
        url = re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", capsys.readouterr().err)
        address = urllib.parse.urlsplit(url[1])
        scraped.append(address.netloc)
        connection = http.client.HTTPConnection(address.netloc)
        connection.request("GET", address.path)
        scraped.append(connection.getresponse().read().decode())
        connection.close()
        return results.answer()

    assert autofit(*TUNE, "--metrics-port", "0", tune=search).code == 0
    address, text = scraped
    assert 'autofit_trials_total{probe="predict",verdict="FITS"} 1.0' in text
    with pytest.raises(ConnectionRefusedError):  # they end with the search
        http.client.HTTPConnection(address).request("GET", "/metrics")


def test_a_report_of_the_answer_is_written(autofit, results, tmp_path):
    page = tmp_path / "page.html"

    def report(_settings, workload, result, _emit):
        return Page(title=workload.target, answer=(f"the best is {result.best.batch_size}",), facts=())

    doors = {"tune": returning(results.answer()), "report_on_search": report}
    finished = autofit(*TUNE, "--report", str(page), "--json", "--quiet", **doors)
    assert finished.code == 0
    assert finished.document["best"]["batch_size"] == 118
    assert "the best is 118" in page.read_text(encoding="utf-8")


def test_a_report_that_fails_costs_nobody_the_answer(autofit, results, tmp_path):
    def lost(*_):
        raise DispatchError("the worker died")

    doors = {"tune": returning(results.answer()), "report_on_search": lost}
    finished = autofit(*TUNE, "--report", str(tmp_path / "page.html"), "--json", "--quiet", **doors)
    assert finished.code == 5
    assert finished.document["best"]["batch_size"] == 118, "one document, the answer"
    assert "the report was not written: the worker died" in finished.err
    assert not (tmp_path / "page.html").exists()


def test_a_report_that_cannot_be_written_ends_the_search_before_it_begins(autofit, tmp_path):
    def never(*_):
        raise AssertionError("the search began")

    place = tmp_path / "missing" / "page.html"
    finished = autofit(*TUNE, "--report", str(place), "--json", tune=never)
    assert finished.code == 5
    assert f"cannot write {place}" in finished.document["message"]
