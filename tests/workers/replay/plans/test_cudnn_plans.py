"""Plans that are asked of libcudnn's process: remembered, shared, and asked again when it died."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autofit_workers.process.child_process import NO_GPU, ChildProcess
from autofit_workers.replay.plans import cudnn_plans
from autofit_workers.replay.plans.cudnn import CudnnError
from autofit_workers.replay.plans.cudnn_plans import CudnnPlans
from autofit_workers.replay.plans.device_properties import DeviceProperties
from tests.workers.replay.plan_servers import servers
from tests.workers.replay.plan_tables import CONVOLUTION, GROUPED, variant

needs_libcudnn = pytest.mark.skipif(
    not CudnnPlans.is_available(), reason="needs libcudnn: pip install -c constraints.txt '.[cudnn]'"
)
CARD = DeviceProperties(
    name="a card",
    architecture="sm_80",
    num_sms=108,
    total_bytes=80 << 30,
    sm_clock_khz=1_410_000,
    memory_clock_khz=1_593_000,
    memory_bus_bits=5120,
    l2_bytes=40 << 20,
)
REFUSED = variant(output_shape=(64, 64, 50, 50))  # no convolution with this padding gives it


@pytest.fixture
def without_libcudnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_server: None) -> None:
    """Hides the environment's NVIDIA packages from this process and those it starts."""
    package = tmp_path / "nvidia"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_without_libcudnn_every_question_is_answered_with_the_next_step(without_libcudnn):
    source = CudnnPlans(CARD)
    for _ in range(2):
        with pytest.raises(CudnnError, match=r"pip install -c constraints.txt '\.\[cudnn\]'"):
            source.plans([CONVOLUTION])
    assert len(servers()) == 1  # it says so and lives on


def test_nothing_is_written_when_there_is_no_answer(without_libcudnn, tmp_path):
    folder = tmp_path / "plans"
    with pytest.raises(CudnnError):
        CudnnPlans(CARD, cache_folder=folder).plans([CONVOLUTION])
    assert not folder.exists()


def test_the_process_answers_each_request_until_an_empty_line(without_libcudnn):
    server = ChildProcess("autofit_workers.replay.plans.plan_server", NO_GPU)
    request = json.dumps({"device": CARD.to_json(), "calls": [dataclasses.asdict(CONVOLUTION)]})
    for _ in range(2):
        assert "libcudnn is not installed" in json.loads(server.ask(request, deadline=float("inf")))["error"]
    server.dismiss()
    assert server._process.returncode == 0


@needs_libcudnn
def test_plans_are_asked_for_once_and_come_in_the_order_of_the_calls(no_server):
    source = CudnnPlans(CARD)
    dense, grouped = source.plans([CONVOLUTION, GROUPED])
    assert dense != grouped
    cudnn_plans._server.close()
    assert source.plans([GROUPED, CONVOLUTION, GROUPED]) == [grouped, dense, grouped]
    assert servers() == []


@needs_libcudnn
def test_the_name_has_the_version_of_the_library():
    assert CudnnPlans(CARD).name.startswith("cuDNN 9.")
    assert CudnnPlans(CARD).knows_the_order


@needs_libcudnn
def test_answers_are_kept_on_disk_for_other_processes(no_server, tmp_path):
    source = CudnnPlans(CARD, cache_folder=tmp_path)
    plans = source.plans([CONVOLUTION])
    cudnn_plans._server.close()
    other = CudnnPlans(CARD, cache_folder=tmp_path)
    assert other.plans([CONVOLUTION]) == plans
    assert other.name == source.name
    assert servers() == []


@needs_libcudnn
def test_each_card_has_answers_of_its_own(tmp_path):
    ampere, turing = (
        CudnnPlans(dataclasses.replace(CARD, architecture=architecture), cache_folder=tmp_path)
        for architecture in ("sm_80", "sm_75")
    )
    assert ampere.plans([CONVOLUTION]) != turing.plans([CONVOLUTION])
    assert len(list(tmp_path.iterdir())) == 2


@needs_libcudnn
def test_what_another_process_found_meanwhile_is_kept(no_server, tmp_path):
    here = CudnnPlans(CARD, cache_folder=tmp_path)
    there = CudnnPlans(CARD, cache_folder=tmp_path)
    expected = there.plans([GROUPED]), here.plans([CONVOLUTION])
    cudnn_plans._server.close()
    third = CudnnPlans(CARD, cache_folder=tmp_path)
    assert (third.plans([GROUPED]), third.plans([CONVOLUTION])) == expected
    assert servers() == []
    assert len(list(tmp_path.iterdir())) == 1  # and no file half written


@needs_libcudnn
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version":92700,"plans":[]}', '{"version":1,"plans":{"a":[["b"]]}}', "\xff"],
)
def test_a_cache_that_cannot_be_read_is_asked_for_again(text, tmp_path):
    plans = CudnnPlans(CARD, cache_folder=tmp_path).plans([CONVOLUTION])
    (file,) = tmp_path.iterdir()
    file.write_text(text, encoding="latin-1")
    source = CudnnPlans(CARD, cache_folder=tmp_path)
    assert source.plans([CONVOLUTION]) == plans
    assert source.name != "cuDNN 0.0.1"


@needs_libcudnn
def test_an_answer_that_was_cut_short_costs_that_answer_alone(no_server, tmp_path):
    source = CudnnPlans(CARD, cache_folder=tmp_path)
    (first,), (second,) = source.plans([CONVOLUTION]), source.plans([GROUPED])
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 10)  # as by a full disk
    assert CudnnPlans(CARD, cache_folder=tmp_path).plans([CONVOLUTION, GROUPED]) == [first, second]
    cudnn_plans._server.close()
    assert CudnnPlans(CARD, cache_folder=tmp_path).plans([CONVOLUTION, GROUPED]) == [first, second]
    assert servers() == []


@needs_libcudnn
def test_a_question_adds_to_the_cache_and_rewrites_nothing(tmp_path):
    source = CudnnPlans(CARD, cache_folder=tmp_path)
    source.plans([CONVOLUTION])
    (file,) = tmp_path.iterdir()
    before, inode = file.read_bytes(), file.stat().st_ino
    source.plans([CONVOLUTION])
    assert file.read_bytes() == before
    source.plans([CONVOLUTION, GROUPED])
    after = file.read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before)
    assert file.stat().st_ino == inode


@needs_libcudnn
def test_a_disk_that_is_full_costs_no_answer():
    """Every write to /dev/full fails as one to a full disk does."""
    source = CudnnPlans(CARD)
    source._cache = Path("/dev/full")
    assert source.plans([CONVOLUTION])
    assert source.plans([CONVOLUTION, GROUPED])


@needs_libcudnn
def test_a_cache_that_cannot_be_written_costs_no_answer(tmp_path):
    (tmp_path / "file").touch()
    source = CudnnPlans(CARD, cache_folder=tmp_path / "file" / "plans")
    assert source.plans([CONVOLUTION])


@needs_libcudnn
def test_what_cudnn_refuses_is_told_and_the_process_lives_on(no_server):
    source = CudnnPlans(CARD)
    assert source.plans([CONVOLUTION])
    before = servers()
    with pytest.raises(CudnnError, match="BAD_PARAM"):
        source.plans([REFUSED])
    assert source.plans([GROUPED])
    assert servers() == before


@needs_libcudnn
def test_a_process_that_was_killed_is_told_of_and_started_again(no_server):
    source = CudnnPlans(CARD)
    plans = source.plans([CONVOLUTION])
    (killed,) = servers()
    os.kill(killed.pid, signal.SIGKILL)
    assert source.plans([CONVOLUTION]) == plans  # what is known needs no process
    with pytest.raises(CudnnError, match="process died \\(SIGKILL\\)"):
        source.plans([GROUPED])
    assert servers() == []
    assert source.plans([GROUPED])
    assert servers() != [killed]


@needs_libcudnn
def test_a_process_that_died_of_an_error_leaves_its_last_words(no_server):
    source = CudnnPlans(CARD)
    with pytest.raises(CudnnError, match=r"process died \(exit code 1\): KeyError: 'complex64'"):
        source.plans([variant(dtype="complex64")])


@needs_libcudnn
def test_nothing_is_left_behind_by_a_process_that_ends(no_server):
    code = """if True:
        import os
        from autofit_workers.replay.plans import cudnn_plans
        cudnn_plans._server.start()
        print(cudnn_plans._server._process.group)
        if os.environ["ENDS"] == "killed":
            os.kill(os.getpid(), 9)
    """
    for ends in ("by itself", "killed"):
        done = subprocess.run(
            [sys.executable, "-u", "-c", code],
            env={**os.environ, "ENDS": ends},
            capture_output=True,
            text=True,
            check=False,
        )
        server = int(done.stdout)
        try:
            # Killed by the end of its pipe, or dismissed: either way it comes to an end.
            psutil.wait_procs([psutil.Process(server)], timeout=30)
            ended = psutil.Process(server).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            ended = True
        assert ended
