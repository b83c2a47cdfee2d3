"""However a predicted workload ends, or the command that predicts it, nothing of it is left."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run
from tests.faults.ends import AFTERWARDS, End, end, ends, variables
from tests.faults.side_effects import GONE_SECONDS, can_unshare, left_after

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # the first test waits for all of them

ALL = list(ends())


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """All of the ends, several at once, and what is left of each after some seconds."""
    token = f"ends-{uuid.uuid4().hex[:12]}"
    first_key = 0x20000000 + uuid.uuid4().int % 0x10000000
    folder = tmp_path_factory.mktemp("ends")

    def made(numbered: tuple[int, End]) -> str:
        number, which = numbered
        return end(which, variables(f"{token}-{number}-", first_key + number, folder))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(tempfile, "tempdir", str(folder))
        said = list(pool.map(made, enumerate(ALL)))
        made((len(ALL), AFTERWARDS))  # which removes what killed commands could not
    left = left_after(token, GONE_SECONDS)
    names = dict.fromkeys((each.name for each in ALL), "")
    for pid, command in left.items():
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        names[ALL[int(words.partition(f"{token}-")[2].partition("-")[0])].name] += command
    yield {
        "said": dict(zip(names, said, strict=True)),
        "processes": {name: command for name, command in names.items() if command},
        "files": {each.relative_to(folder) for each in folder.iterdir()},
        "shared": [each for each in Path("/dev/shm").iterdir() if token in each.name],
        "segments": _keys() & {first_key + number for number in range(len(ALL))},
    }


def _keys() -> set[int]:
    return {int(line.split()[0]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_each_workload_had_begun_inside(ended: dict[str, dict[str, str]]):
    said = ended["said"]
    if all(each.startswith("ready False") for each in said.values()):
        pytest.skip("this machine has no boundary: `autofit doctor` says why")
    assert {name: each for name, each in said.items() if not each.startswith("ready True, ")} == {}
    assert {name: each for name, each in said.items() if each.endswith("never ended")} == {}


def test_nothing_is_left_of_any(ended: dict[str, object]):
    assert (ended["processes"], ended["files"], ended["shared"], ended["segments"]) == ({}, set(), [], set())


@pytest.mark.parametrize(
    ("lines", "setup", "words"),
    [
        ("held = [bytearray(2**24) for _ in range(1000)]", Setup(most_host_bytes=2**31), "memory"),
        ("all(os.fork() for _ in range(500)) or time.sleep(1000); os._exit(3)", Setup(), "exit code 3"),
        ("os.execv('/bin/sh', ['sh', '-c', 'setsid sleep 1000 & kill -SEGV $$'])", Setup(), "SIGSEGV"),
    ],
    ids=["memory", "forks", "another program"],
)
def test_of_a_script_that_does_not_answer_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, setup: Setup, words: str
):
    token = f"ends-{uuid.uuid4().hex}"
    monkeypatch.setenv("ENDS_NAME", token)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, tempfile, time\n"
        "tempfile.mkdtemp()\n"
        "subprocess.Popen(['setsid', 'sleep', '1000'])\n"
        f"{lines}\n"
    )
    workload = Script(path=script, batch_variable="BATCH").reference()
    spec = TrialSpec(workload=workload, batch_size=4, probe=Probe.PREDICT, setup=setup)
    outcome = run(spec)
    assert outcome.verdict is Verdict.LOST
    assert outcome.error is not None
    assert words in outcome.error.message
    assert left_after(token, GONE_SECONDS) == {}
    if can_unshare():  # else what was killed has left its temporary files
        assert list((tmp_path / "tmp").iterdir()) == []


def test_there_are_two_hundred():
    assert len(ALL) >= 200
    assert len({each.name for each in ALL}) == len(ALL)
