"""Which dispatcher a search gets, and what becomes of it where Ray really cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.dispatch.base import Dispatcher
from autofit.dispatch.connect import connect
from autofit.dispatch.inline import InlineDispatcher
from autofit.dispatch.requests import Wishes
from autofit.errors import DispatchError
from autofit.events import ignore
from autofit_workers.spec.pythons import arguments_for
from tests.conformance.dispatcher import ROOT
from tests.daemons import free_ports

pytestmark = pytest.mark.process

CONNECTS = """
import sys
from autofit.dispatch.connect import connect
from autofit.dispatch.requests import Wishes

dispatcher = connect(sys.argv[1], None, wishes=Wishes(), node_wait_seconds=0.0, emit=print)
print(type(dispatcher).__name__, *dispatcher.notes)
dispatcher.close()
print("ray" in sys.modules)
"""
NO_NAMESPACE = 77
IN_A_NETWORK_OF_ITS_OWN = f"""
unshare --user --map-root-user --net true || exit {NO_NAMESPACE}
exec unshare --user --map-root-user --net "$@"
"""


def connected(address: str | None = None) -> Dispatcher:
    return connect("ray", address, wishes=Wishes(), node_wait_seconds=0.0, emit=ignore)


def said(dispatch: str, *within: str, **environment: str) -> list[str]:
    """What a process of its own says of the dispatcher that it gets."""
    run = subprocess.run(
        [*within, sys.executable, *arguments_for(CONNECTS), dispatch],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if run.returncode == NO_NAMESPACE:
        pytest.skip("no network of one's own can be had here")
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.fixture
def ray_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Ray no place for its files: where its folder should be is a file."""
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    monkeypatch.setenv("RAY_TMPDIR", str(not_a_folder))


def test_inline_is_this_machine_alone_and_ray_is_not_even_imported():
    assert said("inline") == ["InlineDispatcher", "False"]


def test_where_ray_cannot_start_trials_run_on_this_machine_and_a_note_says_why(ray_cannot_start: None):
    with connected() as dispatcher:
        assert isinstance(dispatcher, InlineDispatcher)
        (note,) = dispatcher.notes
    assert note.startswith("Ray could not start (NotADirectoryError: ")
    assert note.endswith(
        "): trials ran one after another on this machine. --dispatch inline says so from the start."
    )


def test_a_local_cluster_that_was_asked_for_is_not_exchanged_for_this_machine(ray_cannot_start: None):
    with pytest.raises(DispatchError, match=r"Ray cannot start on this machine .*\(--dispatch inline\)"):
        connected("local")


def test_a_cluster_that_does_not_answer_is_not_exchanged_either():
    (port,) = free_ports(1)
    with pytest.raises(DispatchError, match=f"nobody answers at 127.0.0.1:{port}"):
        connected(f"127.0.0.1:{port}")


def test_a_ray_that_cannot_be_imported_is_no_obstacle(tmp_path: Path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('libray.so: cannot open shared object')")
    dispatcher, _ = said("ray", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert dispatcher.startswith("InlineDispatcher Ray could not start (ImportError: libray.so: ")


def test_where_processes_cannot_reach_each_other_ray_is_not_waited_for():
    """In a network of its own a process has no address, not even the machine's own to itself."""
    no_network = ("bash", "-c", IN_A_NETWORK_OF_ITS_OWN, "bash")
    dispatcher, _ = said("ray", *no_network)
    assert dispatcher.startswith(
        "InlineDispatcher Ray could not start (its processes cannot connect to each other, OSError: "
    )
