"""Secrets of addresses in every place that takes one: none is in a stream, a file or a list of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autofit.dispatch.addresses import require_answer
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec, WorkingDir
from autofit.jobs.submission import ADDRESS_VARIABLES, STORAGE_VARIABLE
from autofit.paths import state_dir
from autofit.settings.tune_settings import TuneSettings
from autofit.study.storage import open_storage
from tests.commands import Finished
from tests.secret_urls import SECRET, SECRET_URLS

Autofit = Callable[..., Finished]

TUNE = ("tune", "--model=davenet", "--gpu-mem=16G")
SUBMIT = ("submit", "--model=davenet", "--gpu-mem=16G")
NOBODY = "--address=http://127.0.0.1:1"

TYPED = (
    (*TUNE, "--storage={url}"),
    (*TUNE, "--address={url}"),
    (*TUNE, "--json", "--storage={url}"),
    (*SUBMIT, NOBODY, "--storage={url}"),
    (*SUBMIT, "--address={url}"),
    (*SUBMIT, NOBODY, "--working-dir={url}"),
    ("jobs", "--storage={url}"),
    ("stop", "a-job", "--address={url}"),
    ("serve", "--port=0", "--storage={url}"),
    ("serve", "--port=0", "--address={url}"),
)
SET = (
    (STORAGE_VARIABLE, TUNE),
    (STORAGE_VARIABLE, (*TUNE, "--json")),
    (STORAGE_VARIABLE, ("jobs",)),
    ("AUTOFIT_ADDRESS", TUNE),
    (ADDRESS_VARIABLES[0], SUBMIT),
)


def connects(settings: TuneSettings, _workload: object, _emit: object) -> None:
    """What a search begins with, and ends with where neither storage nor cluster can be had."""
    if settings.address is not None:
        require_answer(settings.address, cluster_here=lambda: None)
    open_storage(settings.storage, "study", wait_seconds=0).close()
    raise AssertionError("there is no such storage")


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for what a misspelt URL may be taken as the name of."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path for path in tmp_path.rglob("*") if SECRET in path.name]


def assert_silent(finished: Finished, code: tuple[int, ...] = (2, 5)) -> None:
    assert finished.code in code, finished.err
    assert SECRET not in finished.out + finished.err
    assert "\x1b" not in finished.out + finished.err
    kept = [path for path in state_dir().rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_secret_on_the_command_line_is_refused_before_anything_starts(autofit: Autofit, url: str):
    for arguments in TYPED:
        finished = autofit(*(part.format(url=url) for part in arguments), tune=connects)
        assert_silent(finished, (2,))
        assert "contains a password or token" in finished.out + finished.err


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.parametrize(("variable", "arguments"), SET)
def test_a_secret_of_the_environment_is_in_no_message(
    autofit: Autofit,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    variable: str,
    arguments: tuple[str, ...],
):
    monkeypatch.setenv(variable, url)
    assert_silent(autofit(*arguments, tune=connects))


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.parametrize("option", ["storage", "address"])
def test_a_secret_of_a_settings_file_is_in_no_message(
    autofit: Autofit, tmp_path: Path, url: str, option: str
):
    escaped = "".join(f"\\u{ord(char):04x}" for char in url)
    (tmp_path / "settings.toml").write_text(f'[tune]\n{option} = "{escaped}"\n')
    assert_silent(autofit(*TUNE, "--config=settings.toml", tune=connects))


@pytest.mark.parametrize("url", SECRET_URLS)
def test_what_jobs_recorded_is_shown_without_secrets(autofit: Autofit, url: str):
    with JobQueue.open(None) as queue:
        spec = JobSpec(
            options={"model": f"{url}:w"}, workload=url, working_dir=WorkingDir(digest=None, where=url)
        )
        job, _ = queue.enqueue("a-job", spec)
        queue.request_stop(job)
    for arguments in (("jobs",), ("jobs", "--json"), ("status", "a-job"), ("status", "a-job", "--json")):
        finished = autofit(*arguments)
        assert finished.code == 0
        assert SECRET not in finished.out + finished.err
        assert "\x1b" not in finished.out


@pytest.mark.process
def test_no_process_that_is_started_has_the_secret_in_its_arguments(tmp_path: Path):
    environment = {
        **os.environ,
        STORAGE_VARIABLE: f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        "AUTOFIT_STATE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "autofit.cli", *TUNE]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        seen: set[str] = set()
        while process.poll() is None:
            for each in psutil.Process(process.pid).children(recursive=True):
                try:
                    seen.add(" ".join(each.cmdline()))
                except psutil.NoSuchProcess:
                    continue
        told = process.stdout.read() if process.stdout is not None else ""
    assert process.returncode == 5, told
    assert any("autofit_workers" in command for command in seen)
    assert not [command for command in seen if SECRET in command]
    assert SECRET not in told
