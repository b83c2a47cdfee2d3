"""Whole predictions of runs with known snapshots: `python tests/bench/snapshot_runs.py --repository FOLDER`.

FOLDER is a checkout of Wedsonlin/assignment2-systems, whose own script is traced on the fake GPU up to the
step that its snapshots recorded; without it nothing is run. Its packages einops, einx and jaxtyping have to
be installed, or on PYTHONPATH.

The peaks of the whole run are held against the real ones. So are the allocations of that step: sizes in
their order, each with the line that asked; in backward, where another thread asks, without a line. Ends with
1 where the reserved peak is more than 0.6 % off, the allocated one more than 0.1 %, or fewer than 99 % are
matched. `--traces` keeps traces in a folder, and looks for them there.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit_workers.replay.allocator import ActionKind, record_history  # noqa: E402
from autofit_workers.replay.allocator.settings import MIB  # noqa: E402
from autofit_workers.spec.trace import Allocation, Trace  # noqa: E402
from tests.bench.snapshots import Stream, read_snapshot, stream_of  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402

_SCRIPT = "cs336_systems/nsys_profile.py"
_MODEL = "--d_model=1024 --num_layers=24 --num_heads=16 --d_ff=4096 --model_name=medium"
_STEP = 6  # five steps go before the one that is recorded
_BATCH = 4
_ARCHITECTURE = "sm_80"  # a library's workspaces of 8.125 MiB are of a card before Hopper
_RESERVED_SHARE, _ALLOCATED_SHARE, _MATCHED_SHARE = 0.006, 0.001, 0.99
_NUM_SHOWN = 8

Request = tuple[int, str]  # bytes, and the line that asked


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded training.

    Attributes:
        name: of its snapshot.
        autocast: whether it ran under bfloat16 autocast.
    """

    name: str
    context: int
    autocast: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        given = f"{_MODEL} --context_length={self.context} --autocast={str(self.autocast).lower()}"
        return (*given.split(), "--pattern=full-training-step", "--memory-profiler=pytorch")


RUNS = {
    run.name: run
    for run in (
        Run("Wedsonlin-medium_128_training", 128, autocast=False),
        Run("Wedsonlin-medium_512_training", 512, autocast=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A predicted run beside the real one: peaks in bytes, and allocations of the recorded step.

    Attributes:
        num_matched: allocations in the longest common parts, in order.
        unmatched: runs of allocations that the real step or the predicted one alone has, and how often each.
    """

    reserved: tuple[int, int]
    allocated: tuple[int, int]
    num_real: int
    num_predicted: int
    num_matched: int
    unmatched: Counter[tuple[tuple[Request, ...], tuple[Request, ...]]]

    @property
    def matched_share(self) -> float:
        return self.num_matched / max(self.num_real, self.num_predicted)

    @property
    def is_good(self) -> bool:
        return (
            abs(_error(self.reserved)) <= _RESERVED_SHARE
            and abs(_error(self.allocated)) <= _ALLOCATED_SHARE
            and self.matched_share >= _MATCHED_SHARE
        )


def _error(real_and_predicted: tuple[int, int]) -> float:
    real, predicted = real_and_predicted
    return predicted / real - 1


def trace_script(repository: Path, run: Run) -> Trace:
    """Traces the repository's script in this process, which can do nothing else afterwards."""
    from autofit_workers.spec.protocol import Probe, TrialSpec
    from autofit_workers.spec.workloads.scripts import Script
    from autofit_workers.tracing.fake import fake_gpu
    from autofit_workers.tracing.scripts.tracer import ScriptTracer

    workload = Script(path=str(repository / _SCRIPT), arguments=run.arguments).reference()
    assert workload.script is not None
    workload = replace(workload, script=replace(workload.script, keeps_batch=True))
    fake_gpu.install()
    spec = TrialSpec(workload=workload, batch_size=_BATCH, probe=Probe.PREDICT, with_calls=True)
    return ScriptTracer(spec, _STEP).run(lambda: os._exit(1))


def predicted_trace(repository: Path, run: Run, folder: Path) -> Trace:
    """Traces the script in a process of its own.

    Args:
        repository: a checkout.
        run: says with which arguments.
        folder: an empty folder for the copy that is run.

    Raises:
        RuntimeError: it was not traced.
    """
    script = folder / _SCRIPT
    script.parent.mkdir()
    # Python before 3.12 reads no quotes in a string's braces that are those around the string.
    text = (repository / _SCRIPT).read_text(encoding="utf-8")
    script.write_text(text.replace('["context_length"]}', "['context_length']}"), encoding="utf-8")
    written = folder / "trace.json"
    done = subprocess.run(
        [sys.executable, __file__, run.name, f"--repository={folder}", f"--write={written}"],
        env=os.environ | {"PYTHONPATH": _path(repository), "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if not written.exists():
        raise RuntimeError(f"{run.name} was not traced: {done.stderr.strip().splitlines()[-1:]}")
    return Trace.from_json(written.read_text(encoding="utf-8"))


def _path(repository: Path) -> str:
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(repository / "cs336-basics"), str(repository), *([given] if given else [])])


def compare(trace: Trace, stream: Stream, real: list[Request], repository: Path) -> Compared:
    """Compares a predicted run with the real one.

    Args:
        trace: of all steps up to the recorded one.
        stream: the snapshot's requests after its start.
        real: allocations of the recorded step, in order.
        repository: folder with the code whose lines are named.
    """
    from tests.bench.language.runs import Seen, likely_sizes

    replayed = Seen(trace, _ARCHITECTURE).replay
    predicted = requests_of_step(trace, likely_sizes(trace, _ARCHITECTURE), repository)
    matcher = difflib.SequenceMatcher(None, real, predicted, autojunk=False)
    unmatched = Counter(
        (tuple(real[i:j]), tuple(predicted[k:m]))
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    )
    return Compared(
        reserved=(stream.peak_reserved_bytes, replayed.peak_reserved_bytes),
        allocated=(allocated_peak(stream), replayed.peak_allocated_bytes),
        num_real=len(real),
        num_predicted=len(predicted),
        num_matched=sum(block.size for block in matcher.get_matching_blocks()),
        unmatched=unmatched,
    )


def requests_of_step(trace: Trace, sizes: list[int], repository: Path) -> list[Request]:
    """Allocations of the last step of a trace that make a block, each with the line that asked."""
    forward, backward, optimizer = (
        next(mark.position for mark in trace.marks if mark.name == f"step {_STEP} {phase}")
        for phase in ("forward", "backward", "optimizer")
    )
    return [
        (
            sizes[event],
            "" if backward <= position < optimizer else _line(trace.allocations[event], repository),
        )
        for position, event in enumerate(trace.events[forward:], forward)
        if event >= 0 and sizes[event]
    ]


def _line(allocation: Allocation, repository: Path) -> str:
    """Innermost line of the repository's code, `file:line:function`, without the file's folders."""
    inside = (each for each in reversed(allocation.stack) if each.startswith(f"{repository}/"))
    return next(inside, allocation.source).rpartition("/")[2]


def allocated_peak(stream: Stream) -> int:
    """Most bytes of blocks that were allocated at once, from a stream's first event on."""
    sizes: dict[int, int] = {}
    live = peak = 0
    for action in record_history(stream.events, stream.sizes, streams=stream.streams).actions:
        if action.request is None:
            continue
        if action.kind is ActionKind.ALLOC:
            sizes[action.request] = action.num_bytes
            live += action.num_bytes
        elif action.kind is ActionKind.FREE_COMPLETED:
            live -= sizes.pop(action.request)
        if action.position >= stream.num_before:
            peak = max(peak, live)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these runs")
    parser.add_argument("--repository", type=Path, help="a checkout of Wedsonlin/assignment2-systems")
    parser.add_argument("--snapshots", type=Path, default=DEFAULT_TABLES / "snapshots")
    parser.add_argument("--traces", type=Path, help="folder in which traces are kept, and looked for")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.names) - set(RUNS):
        parser.error(f"no run {', '.join(sorted(unknown))}: there are {', '.join(RUNS)}")
    runs = [RUNS[name] for name in options.names or RUNS]
    if options.repository is None:
        print("skipped: name a checkout by --repository")
        return
    if options.write:
        options.write.write_text(trace_script(options.repository, *runs).to_json(), encoding="utf-8")
        os._exit(0)  # threads of what was traced may still wait for steps
    print(
        "| run | reserved, MiB | predicted | | allocated, MiB | predicted | | allocations | predicted "
        "| matched |\n" + "|---" * 10 + "|"
    )
    bad, repository = [], options.repository.resolve()
    for run in runs:
        trace = _trace(repository, run, options.traces)
        snapshot = read_snapshot(options.snapshots, run.name)
        real = [(each.size, each.where) for each in snapshot.events if each.kind is ActionKind.ALLOC]
        compared = compare(trace, stream_of(snapshot), real, repository)
        print(_row(run, compared), flush=True)
        for (here, there), number in compared.unmatched.most_common(_NUM_SHOWN):
            print(
                f"{run.name}: {number} times real {_shown(here)}, predicted {_shown(there)}", file=sys.stderr
            )
        if not compared.is_good:
            bad.append(run.name)
    print(f"further off than asked: {', '.join(bad)}" if bad else "all within what is asked")
    sys.exit(bool(bad))


def _trace(repository: Path, run: Run, kept: Path | None) -> Trace:
    path = None if kept is None else kept / f"{run.name}.json"
    if path is not None and path.exists():
        return Trace.from_json(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        trace = predicted_trace(repository, run, Path(folder))
    if path is not None:
        path.write_text(trace.to_json(), encoding="utf-8")
    return trace


def _row(run: Run, compared: Compared) -> str:
    cells = [run.name]
    for pair in (compared.reserved, compared.allocated):
        cells += [*(f"{num_bytes / MIB:,.1f}" for num_bytes in pair), f"{_error(pair):+.2%}"]
    cells += [f"{compared.num_real:,}", f"{compared.num_predicted:,}", f"{compared.matched_share:.2%}"]
    return f"| {' | '.join(cells)} |"


def _shown(requests: tuple[Request, ...]) -> str:
    first = ", ".join(f"{size:,} B{f' {where}' if where else ''}" for size, where in requests[:3])
    return f"{first} and {len(requests) - 3} more" if len(requests) > 3 else first or "nothing"


if __name__ == "__main__":
    main()
