"""The parsers of what others wrote: how an input for each is made by seed, and how it is read.

An input is bytes, so that it can be kept as a file. To read one may raise nothing but errors of autofit's,
and where a function promises `ValueError`, that.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import json
import os
import pickle
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from autofit.cli.commands.profile_views import EXPORTS, VIEWS
from autofit.explain.profile import read_profile
from autofit.explain.snapshots.as_profile import profile_of
from autofit.explain.snapshots.run import open_run
from autofit.explain.views.filters import Filters
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobRecord, JobSpec, JobState, packed
from autofit.locks import growth
from autofit.locks.configurations import configuration_of, read_configured
from autofit.locks.lock_file import LockedConfiguration, LockError, lock_text, parse_lock
from autofit.predict.convolutions.plan import ConvPlan, LayerChoice
from autofit.questions.real_runs.observe import measured_in
from autofit.questions.real_runs.snapshot import observed_snapshot
from autofit.settings.options import OPTIONS
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer
from autofit.study.journal import open_journal
from autofit.tuning.result import TuneResult
from autofit_workers.spec.protocol import Heartbeat, TrialOutcome
from autofit_workers.spec.trace import Trace
from tests.autofit.cli.conftest import answer
from tests.autofit.explain.snapshots.planted import steps
from tests.autofit.explain.toy import TIMED
from tests.fuzz import hostile

Make = Callable[[Random], bytes]
Read = Callable[[bytes, Path], None]


@dataclass(frozen=True, slots=True)
class Parser:
    """One kind of input.

    Attributes:
        make: an input by seed.
        read: reads it in a folder of its own.
        suffix: of a file with such an input.
    """

    name: str
    make: Make
    read: Read
    suffix: str


def _json_of(valid: Callable[[], Any]) -> Make:
    """Makers copy before they change anything."""

    def make(random: Random) -> bytes:
        kind = random.random()
        if kind < 0.7:
            return hostile.json_text(hostile.document(valid(), random), random)
        if kind < 0.97:
            return hostile.damaged(json.dumps(valid()).encode(), random)
        return hostile.monotonous(random, 1_000_000 if random.random() < 0.9 else hostile.MOST_BYTES)

    return make


def _write(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# ── settings: the command line with the environment, and files ──────────────────────────────────

_ARGUMENTS = [option.argument for option in OPTIONS.values()]
_WORDS = (
    "davenet", "16G", "cudnn", "native", "rtx-3090", "fp32", "amp-bf16", "8", "true", "blocks", "ddp:2",
    "train", "conv-algo=cudnn,native", "precision=fp32,tf32", "safe", "predict", "3x8x8", "all",
)  # fmt: skip


def _setting(name: str, random: Random) -> Any:
    """Half of the time what the option takes, so that more than the first of them is read."""
    option = next(option for option in OPTIONS.values() if option.argument == name)
    if option.choices and random.random() < 0.5:
        return random.choice(option.choices)
    return random.choice(
        (
            random.choice(_WORDS),
            hostile.line_of(_WORDS, random),
            random.choice(hostile.TEXTS),
            hostile.value(random),
        )
    )


def make_settings(random: Random) -> bytes:
    """What is said on the command line, and variables."""
    names = random.sample(_ARGUMENTS, random.randrange(1, 5))
    variables = random.sample(_ARGUMENTS, random.randrange(3))
    given = {
        "cli": {"model": "davenet", "gpu_mem": "16G", **{name: _setting(name, random) for name in names}},
        "env": {f"AUTOFIT_{name.upper()}": str(_setting(name, random))[:100_000] for name in variables},
    }
    return json.dumps(given).encode()


def read_settings(data: bytes, _folder: Path) -> None:
    given = json.loads(data)
    cli = {name: tuple(each) if isinstance(each, list) else each for name, each in given["cli"].items()}
    resolve_settings(cli, given["env"], None)


def _toml_value(random: Random) -> str:
    word = random.choice((random.choice(_WORDS), random.choice(hostile.TEXTS)))
    quoted = json.dumps(word, ensure_ascii=random.random() < 0.8)
    makers = (
        lambda: quoted, lambda: quoted, lambda: f"'{word}'", lambda: word, lambda: f"'''{word}'''",
        lambda: str(random.choice(hostile.NUMBERS)), lambda: "true", lambda: "inf", lambda: "nan",
        lambda: f"[{', '.join([quoted] * random.randrange(4))}]", lambda: "{ a = 1 }", lambda: "1979-05-27",
        lambda: "0x" + "f" * random.choice((3, 16, 5000)), lambda: "[" * random.choice((2, 70, 900)),
        lambda: "{ " + "a." * random.choice((3, 300, 20_000)) + "a = 1 }",
    )  # fmt: skip
    return str(random.choice(makers)())


def make_toml(random: Random) -> bytes:
    """A settings file."""
    if random.random() < 0.03:
        return hostile.monotonous(random, hostile.MOST_BYTES)
    if random.random() < 0.02:
        parts = ".".join("a" * random.choice((100, 1000, 100_000)))
        return random.choice(
            (f"[{parts}]", f"{parts} = 1", f"[[{parts}]]", f"[tune]\nx = {{{parts}=1}}")
        ).encode()
    lines = ["[tune]", 'model = "davenet"', 'gpu-mem = "16G"']
    for _ in range(random.randrange(5)):
        key = random.choice((*OPTIONS, *OPTIONS, *hostile.TEXTS))
        lines.append(f"{key if random.random() < 0.9 else json.dumps(key)} = {_toml_value(random)}")
    if random.random() < 0.2:
        lines.insert(
            random.randrange(len(lines)),
            random.choice(("[[tune]]", "[tune.x]", "[other]", "[", "\ufeff", "#")),
        )
    text = "\n".join(lines).encode(errors="replace" if random.random() < 0.8 else "surrogatepass")
    return hostile.damaged(text, random) if random.random() < 0.3 else text


def read_toml(data: bytes, folder: Path) -> None:
    resolve_settings({}, {}, _write(data, folder, "settings.toml"))


# ── locks ───────────────────────────────────────────────────────────────────────────────────────

_PEAK_BYTES = ("likely_bytes", "high_bytes", "allocated_bytes", "parameters_bytes", "activations_bytes")


def make_lock(random: Random) -> bytes:
    """A lock, some of whose values are others."""
    values = (*hostile.NUMBERS, *(json.dumps(text) for text in hostile.TEXTS), '"2.13.0"', "{}", "[]", "true")
    peak = {"torch": '"2.13.0"', "gpu": '"t4"', **dict.fromkeys(_PEAK_BYTES, "1000")}
    holder = {"module": '"a.*"', "line": '"m.py:1"', "code": '"x"', "bytes": "1000"}
    for table in (peak, holder):
        for _ in range(random.choice((0, 0, 1, 3))):
            table[random.choice((*table, "largest_batch", "step_seconds"))] = str(random.choice(values))
    name = json.dumps(random.choice(("a", "a.b", *hostile.TEXTS)))
    lines = [
        f'schema = "autofit.lock/{random.choice("1111112")}"',
        f"[configurations.{name}]",
        f"[[configurations.{name}.peaks]]",
        *(f"{key} = {value}" for key, value in peak.items()),
        f"holders = [{{{', '.join(f'{key} = {value}' for key, value in holder.items())}}}]",
    ]
    text = "\n".join(lines).encode(errors="replace")
    return hostile.damaged(text, random) if random.random() < 0.3 else text


def read_lock(data: bytes, _folder: Path) -> None:
    """Reads a lock, writes it and reads it again, and compares its peaks with some that hold nothing."""
    lock = parse_lock(data)
    try:
        again = parse_lock(lock_text(lock))
    except LockError as error:
        raise AssertionError(f"what is written is not read: {error.message}") from error
    assert again == lock
    for each in lock.configurations.values():
        for peak in each.peaks:
            empty = dataclasses.replace(peak, holders=(), other_bytes=0)
            for before, after in ((empty, peak), (peak, empty)):
                found = growth.compare(each.name, before, after, growth.DEFAULT_TOLERANCE)
                assert all("\x1b" not in f"{line.code}{line.file}{line.module}" for line in found.lines)


def make_lock_table(random: Random) -> bytes:
    """A pyproject.toml with the table of what is to be locked."""
    lines = ["[tool.autofit.lock.configurations.a]", 'model = "davenet"', "batch-size = 8"]
    keys = random.choices((*OPTIONS, "batch-size", "largest-batch"), k=random.randrange(4))
    lines += [f"{key} = {_toml_value(random)}" for key in keys]
    lines.insert(random.randrange(4), random.choice(("", "", "[tool]", f"tolerance = {_toml_value(random)}")))
    text = "\n".join(lines).encode(errors="replace")
    return hostile.damaged(text, random) if random.random() < 0.3 else text


def read_lock_table(data: bytes, folder: Path) -> None:
    """Reads the table, and its configurations again from the arguments that a lock would keep."""
    _write(data, folder, "pyproject.toml")
    for each in read_configured(folder).configurations.values():
        locked = LockedConfiguration(name=each.name, arguments=each.arguments)
        try:
            again = configuration_of(locked)
        except LockError as error:
            raise AssertionError(f"arguments are not read: {error.message}") from error
        assert again.arguments == each.arguments


# ── references ──────────────────────────────────────────────────────────────────────────────────

_NAMES = (
    "davenet", "resnet50", "gpt2", "timm", "torchvision", "hf", "net", "mine.py", "script.py", "folder",
    "loop", "json", "os.path", "package.module", "config.json", "pipe.py", "~", "..", ".", "/", "/dev/null",
    "/proc/self/mem", "binary.py", "attribute", "Net",
)  # fmt: skip


def make_reference(random: Random) -> bytes:
    """What may be said for --model or --script."""
    text = hostile.line_of(_NAMES, random)
    return json.dumps({random.choice(("model", "model", "script")): text}).encode()


def read_reference(data: bytes, folder: Path) -> None:
    _populate(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        settings = resolve_settings({**json.loads(data), "gpu_mem": "16G"}, {}, None)
        refer(settings.model, settings)
    finally:
        os.chdir(before)


def _populate(folder: Path) -> None:
    """Files of every kind, once a folder."""
    if (folder / "loop").is_symlink():
        return
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "mine.py").write_text("net = 1\n")
    (folder / "script.py").write_text("print()\n")
    (folder / "binary.py").write_bytes(bytes(range(256)))
    (folder / "config.json").write_text("[" * 5000)
    os.mkfifo(folder / "pipe.py")


# ── saved profiles, plans ───────────────────────────────────────────────────────────────────────


@functools.cache
def _profile_document() -> Any:
    return json.loads(gzip.decompress(TIMED.to_bytes()))


def make_profile(random: Random) -> bytes:
    """A saved profile."""
    kind = random.random()
    if kind < 0.75:
        text = hostile.json_text(hostile.document(_profile_document(), random), random)
        return gzip.compress(text, 1)
    if kind < 0.95:
        return hostile.damaged(TIMED.to_bytes(), random)
    if kind < 0.98:
        text = (
            _long_profile(random) if random.random() < 0.3 else hostile.monotonous(random, hostile.MOST_BYTES)
        )
        return gzip.compress(text, 1)
    return hostile.bomb(random)


def _long_profile(random: Random) -> bytes:
    """A valid one with much of one thing: stacks on stacks, events, dimensions, marks, long names."""
    document = json.loads(json.dumps(_profile_document()))
    trace, num = document["trace"], random.choice((1000, 20_000, 100_000))
    kind = random.randrange(6)
    if kind == 0:
        trace["stacks"] = [[0, number] for number in range(num)]
    elif kind == 1:
        first = len(trace["allocations"])
        trace["allocations"] += [trace["allocations"][2]] * num
        trace["stacked"] += [0] * num
        trace["events"] += [each for number in range(first, first + num) for each in (number, ~number)]
        document["requested_bytes"] += [1] * num
        document["block_bytes"] += [512] * num
    elif kind == 2:
        trace["allocations"][2][6] = [2**62] * num
    elif kind == 3:
        trace["marks"] += [[len(trace["events"]), f"step {number} forward"] for number in range(3, num)]
    elif kind == 4:
        trace["strings"] = [text * (num // 10) for text in trace["strings"]]
    else:
        trace["calls"] += [trace["calls"][-1]] * num
    return json.dumps(document).encode()


def read_profile_and_show(data: bytes, folder: Path) -> None:
    """Reads a profile and makes one of its views or exports."""
    profile = read_profile(_write(data, folder, "profile.gz"))
    name = _random_of(data).choice((*VIEWS, *EXPORTS))
    if name in VIEWS:
        VIEWS[name].make(profile, Filters()).to_json()
    else:
        EXPORTS[name].make(profile, Filters(), folder / "out")


def _random_of(data: bytes) -> Random:
    """What else is chosen for an input: the same for the same."""
    return Random(zlib.crc32(data))


_PLAN = ConvPlan(
    batch_size=8,
    layers=(
        LayerChoice(layer="conv1", algorithm="cudnn", workspace_bytes=1024, cost=0.75),
        LayerChoice(layer="conv2", algorithm="native", workspace_bytes=0, cost=0.25),
    ),
    peak_reserved_bytes=1 << 30,
    relative_cost=1.5,
)


def read_plan(data: bytes, folder: Path) -> None:
    ConvPlan.load(_write(data, folder, "plan.json")).to_json()


# ── memory snapshots of real runs ───────────────────────────────────────────────────────────────

_TABLE = (
    b"action,address,size,stream,where\nsegment_alloc,0,20971520,0,\nalloc,0,2097152,0,a.py:1:f\n"
    b"free_requested,0,2097152,0,\nfree_completed,0,2097152,0,\n"
)


def make_snapshot(random: Random) -> bytes:
    """A pickle of a snapshot, or CSV of one."""
    valid = steps(2, leak=1 << 20).document()
    kind = random.random()
    if kind < 0.6:
        try:
            return pickle.dumps(hostile.document(valid, random), random.choice((2, 3, 4, 5)))
        except (UnicodeError, RecursionError):
            return b"\x80\x04" + random.choice((b"]", b"}", b")\x85", b"(")) * 10_000 + b"."
    return hostile.damaged(_TABLE if kind < 0.7 else pickle.dumps(valid, 4), random)


def read_snapshot_and_explain(data: bytes, folder: Path) -> None:
    """Reads a snapshot and makes all that is said of it, or a view of it."""
    run = open_run(_write(data, folder, "run.pickle"))
    observed_snapshot(run).to_json()
    VIEWS[_random_of(data).choice([name for name in VIEWS if name != "plan"])].make(
        profile_of(run), Filters()
    )


# ── what lies in a storage ──────────────────────────────────────────────────────────────────────


@functools.cache
def _answer_document() -> Any:
    return json.loads(answer().to_json())


@functools.cache
def _journal() -> bytes:
    """The journal of a queue with three jobs, one of them answered."""
    spec = JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet", gpu="rtx-3090")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.journal")
        with JobQueue.open(str(path)) as queue:
            for number in range(3):
                queue.enqueue(f"job-{number}", dataclasses.replace(spec, fleet=None if number else "fleet"))
            claimed = queue.claim_next()
            assert claimed is not None
            queue.finish(queue.record_attempt(claimed, "submission"), _answer_document())
        return path.read_bytes()


def _journal_lines() -> list[Any]:
    return [json.loads(line) for line in _journal().splitlines()]


def make_jobs(random: Random) -> bytes:
    """A queue of jobs in a journal, with a value changed in what describes a job."""
    lines = _journal_lines()
    described = [line for line in lines if "user_attr" in line]
    for line in random.sample(described, random.randrange(1, 3)):
        line["user_attr"] = hostile.document(line["user_attr"], random)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def make_journal(random: Random) -> bytes:
    """A journal with lines or bytes changed."""
    if random.random() < 0.02:
        return hostile.monotonous(random, hostile.MOST_BYTES // 10)
    if random.random() < 0.5:
        return hostile.damaged(_journal(), random)
    lines = hostile.document(_journal_lines(), random)
    lines = lines if isinstance(lines, list) else [lines]
    return b"".join(hostile.json_text(line, random) + b"\n" for line in lines)


def read_jobs(data: bytes, folder: Path) -> None:
    """Reads the queue, and what its jobs answered."""
    with JobQueue.open(str(_write(data, folder, "jobs.journal"))) as queue:
        for record in queue.records():
            _look_at(record)


def _look_at(record: JobRecord) -> None:
    document = record.answer
    assert (document is not None) == (record.exit_code is not None) == record.state.is_over
    if document is not None:
        _result_of(document)


def _result_of(document: dict[str, Any]) -> None:
    try:
        result = TuneResult.from_dict(document)
    except ValueError:
        return
    result.to_json()


def read_journal(data: bytes, folder: Path) -> None:
    open_journal(_write(data, folder, "study.journal"))


def make_answer(random: Random) -> bytes:
    """A job's answer as the storage has it: compressed, in letters."""
    kind = random.random()
    if kind < 0.8:
        text = hostile.json_text(hostile.document(_answer_document(), random), random)
        return base64.b64encode(zlib.compress(text, 1))
    if kind < 0.98:
        return hostile.damaged(packed(_answer_document()).encode(), random)
    return base64.b64encode(hostile.bomb(random))


def read_answer(data: bytes, folder: Path) -> None:
    """Reads it from a job's record, and its document as a file of measured peaks."""
    spec = JobSpec(options={}, workload="davenet")
    text = data.decode(errors="replace")
    record = JobRecord(
        number=0, job_id="a", state=JobState.SUCCEEDED, spec=spec, submitted_seconds=0.0, packed_document=text
    )
    _look_at(record)
    try:
        document = json.dumps(record.document).encode()
    except ValueError:
        document = data
    measured_in(_write(document, folder, "answer.json"))


# ── what a trial's process says ─────────────────────────────────────────────────────────────────


@functools.cache
def _outcome_document() -> Any:
    return json.loads(dataclasses.replace(answer().trials[0], trace_json=TIMED.trace.to_json()).to_json())


def read_outcome(data: bytes, _folder: Path) -> None:
    """Reads a line as heartbeat, outcome and trace, each of which promises `ValueError`."""
    text = data.decode(errors="replace")
    for read in (Heartbeat.from_json, Trace.from_json):
        try:
            read(text)
        except ValueError:
            continue
    try:
        outcome = TrialOutcome.from_json(text)
    except ValueError:
        return
    outcome.to_json()


PARSERS = {
    parser.name: parser
    for parser in (
        Parser("settings", make_settings, read_settings, ".json"),
        Parser("toml", make_toml, read_toml, ".toml"),
        Parser("locks", make_lock, read_lock, ".toml"),
        Parser("tables", make_lock_table, read_lock_table, ".toml"),
        Parser("references", make_reference, read_reference, ".json"),
        Parser("profiles", make_profile, read_profile_and_show, ".gz"),
        Parser("snapshots", make_snapshot, read_snapshot_and_explain, ".pickle"),
        Parser("plans", _json_of(_PLAN.to_dict), read_plan, ".json"),
        Parser("jobs", make_jobs, read_jobs, ".journal"),
        Parser("answers", make_answer, read_answer, ".txt"),
        Parser("journals", make_journal, read_journal, ".journal"),
        Parser("outcomes", _json_of(_outcome_document), read_outcome, ".json"),
    )
}
