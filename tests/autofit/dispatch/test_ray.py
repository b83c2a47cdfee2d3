"""The Ray dispatcher on a cluster of this machine, by conformance and on its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

from autofit.dispatch.ray import RayDispatcher
from autofit.errors import DispatchError, UsageError
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict
from tests.conformance.dispatcher import ROOT, DispatcherConformance, TrialFolder, marked_processes, survivors

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def dispatcher(mark: str) -> Iterator[RayDispatcher]:
    """The one cluster of this module: a second dispatcher shares its connection."""
    environment = dict(os.environ)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with RayDispatcher() as dispatcher:
        assert dict(os.environ) == environment
        assert signal.getsignal(signal.SIGTERM) is on_sigterm
        yield dispatcher
    assert marked_processes(mark) == []
    assert not ray.is_initialized()


@pytest.fixture
def open_dispatcher(dispatcher: RayDispatcher) -> Callable[[], RayDispatcher]:
    return RayDispatcher


@pytest.fixture
def constructor() -> str:
    return "RayDispatcher()"


class TestConformance(DispatcherConformance):
    pass


def test_the_package_imports_neither_ray_nor_torch():
    code = (
        "import sys, autofit.dispatch, autofit.serve.metrics\n"
        "sys.exit(len({'ray', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_supervisors_are_used_again_and_never_import_torch(trials: TrialFolder, dispatcher: RayDispatcher):
    def run(spec: TrialSpec) -> TrialOutcome:
        import os
        import sys

        from autofit_workers.spec.protocol import TrialError, Verdict
        from autofit_workers.trials.outcomes import without_answer

        message = f"{os.getpid()} {'torch' in sys.modules}"
        return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=message))

    with RayDispatcher(runner=run) as watched:
        answers = [watched.submit(trials.spec("fits")).result().error.message.split() for _ in range(8)]
    assert len({pid for pid, _ in answers}) < len(answers)
    assert {imported for _, imported in answers} == {"False"}


def test_a_supervisor_that_fails_is_an_infrastructure_error_with_its_cause(
    trials: TrialFolder, dispatcher: RayDispatcher
):
    def run(spec: TrialSpec) -> TrialOutcome:
        raise OSError("no file descriptors")

    with RayDispatcher(runner=run) as broken:
        error = broken.submit(trials.spec("fits")).exception()
    assert isinstance(error, DispatchError)
    assert "OSError: no file descriptors" in error.message


def test_an_outcome_of_another_version_is_an_infrastructure_error(
    trials: TrialFolder, dispatcher: RayDispatcher
):
    class Newer:
        def to_json(self) -> str:
            return '{"schema": "autofit.trial-outcome/999"}'

    with RayDispatcher(runner=lambda spec: Newer()) as newer:
        error = newer.submit(trials.spec("fits")).exception()
    assert isinstance(error, DispatchError)
    assert "install the same autofit on every node" in error.message


def test_a_killed_supervisor_takes_its_trial_with_it_and_the_trial_is_not_run_again(
    dispatcher: RayDispatcher, tmp_path: Path
):
    outcome = dispatcher.submit(TrialFolder(tmp_path).spec("loses_its_supervisor")).result()
    assert outcome.verdict is Verdict.LOST
    assert "worker or its node died" in outcome.error.message
    [orphan] = [line.split() for line in (tmp_path / "orphans").read_text().splitlines()]
    assert survivors(_processes(orphan)) == []


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"num_threads": 100_000}, r"asks for 100000 CPU, and the nodes offer \d+ CPU"),
        (
            {"budget_bytes": 2**60},
            r"asks for 1 CPU, 1048576\.00 TiB of memory, and the nodes offer \d+ CPU, .* of memory",
        ),
    ],
)
def test_a_request_that_this_machine_can_never_satisfy_is_an_error_at_once(
    dispatcher: RayDispatcher, trials: TrialFolder, settings: dict[str, int], asked: str
):
    with pytest.raises(DispatchError, match=asked):
        dispatcher.submit(trials.spec("fits", **settings))


def test_predictions_run_on_the_cluster_too(dispatcher: RayDispatcher, trials: TrialFolder):
    outcome = dispatcher.submit(trials.spec("fits", probe=Probe.PREDICT)).result()
    assert outcome.verdict is Verdict.TRACED
    assert outcome.trace_json is not None


def test_a_connection_that_exists_is_not_exchanged_for_another_address(dispatcher: RayDispatcher):
    with pytest.raises(UsageError, match="already connected"):
        RayDispatcher("127.0.0.1:1")


def test_only_those_who_have_the_cluster_s_token_can_connect(dispatcher: RayDispatcher, tmp_path: Path):
    address = ray.get_runtime_context().gcs_address
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    tokens = [process.environ().get("RAY_AUTH_TOKEN") for process in alive]
    kept = Path("~/.ray/auth_token").expanduser()  # a token that this user has already is taken instead
    tokens += [kept.read_text(encoding="ascii").strip()] if kept.exists() else []
    connect = (
        "import sys; from autofit.dispatch.ray import RayDispatcher\n"
        "from autofit_workers.spec.protocol import Probe\n"
        "with RayDispatcher(sys.argv[1]) as dispatcher: print(dispatcher.capacity(Probe.CPU))"
    )
    stranger = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    stranger |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "RAY_NUM_REDIS_GET_RETRIES": "1"}
    environments = [
        stranger,
        {**stranger, "RAY_AUTH_TOKEN": "0" * 64},
        {**stranger, "RAY_AUTH_TOKEN": next(filter(None, tokens))},
    ]
    refused, mistaken, trusted = [
        subprocess.run(
            [sys.executable, "-c", connect, address], env=env, capture_output=True, text=True, check=False
        )
        for env in environments
    ]
    for failed in (refused, mistaken):
        assert "DispatchError" in failed.stderr
        assert "RAY_AUTH_TOKEN" in failed.stderr
    assert (trusted.stdout, trusted.returncode) == (f"{dispatcher.capacity(Probe.CPU)}\n", 0)


def _processes(pids: Iterable[str]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found
