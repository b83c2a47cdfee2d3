"""Public training scripts as they are: `python tests/bench/scripts.py LIST --root FOLDER`.

The list names, for each script, its repository, the folder that it is started in, the arguments of its
README's first command, how its batch is named, and what was replaced because nothing is downloaded: data
lie ready in the format that the script keeps, names on a model hub are local folders of that name. The
scripts themselves are nobody's to commit: `--root`, else AUTOFIT_BENCH_SCRIPTS, is the folder that holds
them, each repository in a folder of its own.

One row a script:

    outcome    answered: at this first command
               wrong batch: answered, of another batch than the list says
               refused clearly: with one sentence, where the list says that nothing else can be done
               refused wrongly: with one sentence, where there is no reason to
               crashed: what the user sees has frames of autofit or of PyTorch's internals
               too slow: answered more than `--allowed` seconds after the imports, or not by `--deadline`
    s, import  seconds of the command, and of a process that imports what the script's file imports
    changed    files of its repository that are not as they were
    left       processes that outlive the command; they are ended

With `--tune`, `autofit tune --gpu-mem 24G` is asked instead of `autofit estimate --gpu rtx-3090`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit_workers.spec.pythons import StrEnum, read_toml

ROOT = Path(__file__).parents[2]
_MARK = "BENCH_OF_SCRIPTS"  # in the environment of all that a command starts
_WHOLE_DIGEST_BYTES = 2**20  # of larger files size and time are compared
_NOTHING_FITS = 3  # the exit code of a search that found no batch
_GRACE_SECONDS = 3.0  # in which processes may end after their command
# A frame of ours, or of PyTorch beneath the user's: nothing a user can do anything about.
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]*?(?:/autofit/|/autofit_workers/|-packages/torch/)[^"]*)", line (?P<line>\d+)',
    re.MULTILINE,
)


class Outcome(StrEnum):
    ANSWERED = "answered"
    WRONG_BATCH = "wrong batch"
    REFUSED = "refused clearly"
    WRONGLY = "refused wrongly"
    CRASHED = "crashed"
    SLOW = "too slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One script of the list.

    Attributes:
        repository: its name at GitHub; the last part is its folder below the root.
        folder: where the command is given, below the repository's.
        script: its file, from there.
        arguments: what the README's first command has, `{root}` for the folder of all repositories.
        batch: options of autofit that say how the batch is named; none: found by itself.
        batch_size: the command's, or the script's own, which is found where no option says how it is named.
        replaced: what is not as in that command, and why.
        refusal: why no answer is the right one; empty where there has to be one.
        environment: variables beside those of the whole list.
    """

    name: str
    repository: str
    folder: str
    script: str
    arguments: tuple[str, ...]
    batch: tuple[str, ...]
    batch_size: int | None
    replaced: str
    refusal: str
    environment: Mapping[str, str]

    def options(self, root: Path, *, sized: bool) -> list[str]:
        options = ["--script", self.script]
        options += [f"--script-arg={each.format(root=root)}" for each in self.arguments]
        options += self.batch
        if sized and self.batch and self.batch_size is not None:
            options += ["--batch-size", str(self.batch_size)]
        return options

    def home(self, root: Path) -> Path:
        return root / self.repository.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    listed: Listed
    is_answered: bool
    outcome: Outcome
    says: str
    seconds: float
    import_seconds: float
    changed: tuple[str, ...]
    left: tuple[str, ...]


def main() -> None:
    options = arguments()
    document = read_toml(options.list.read_text())
    root = options.root.resolve()
    listed = [each for each in scripts(document) if not options.only or re.search(options.only, each.name)]
    rows = []
    print(header(), flush=True)
    for each in listed:
        if not (each.home(root) / each.folder / each.script).is_file():
            print(f"| {each.name} | not set up |" + " |" * 5, flush=True)
            continue
        rows.append(tried(each, root, options, document.get("environment", {})))
        print(line(rows[-1]), flush=True)
    print()
    print(summary(rows))
    print()
    for each in listed:
        if each.replaced:
            print(f"- {each.name}: {each.replaced}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("list", type=Path, help="a TOML file, such as tests/bench/lists/scripts.toml")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(os.environ.get("AUTOFIT_BENCH_SCRIPTS", ".")),
        help="the folder of the repositories",
    )
    parser.add_argument("--only", metavar="REGEX", help="the scripts whose names it finds")
    parser.add_argument("--tune", action="store_true", help="ask `tune --gpu-mem 24G`")
    parser.add_argument("--gpu", default="rtx-3090", help="the card of `estimate`")
    parser.add_argument("--deadline", type=float, default=200, help="seconds that a command may take")
    parser.add_argument(
        "--allowed", type=float, default=5, help="seconds beside the imports; --tune: per trace"
    )
    parser.add_argument("--logs", type=Path, help="keep what each command printed in this folder")
    return parser.parse_args()


def scripts(document: Mapping[str, Any]) -> Iterator[Listed]:
    for each in document["script"]:
        batch = [(key, each[key]) for key in ("batch-arg", "batch-env", "batch-name") if key in each]
        yield Listed(
            name=each["name"],
            repository=each["repository"],
            folder=each.get("folder", "."),
            script=each["script"],
            arguments=tuple(shlex.split(each.get("arguments", ""))),
            batch=tuple(f"--{key}={value}" for key, value in batch),
            batch_size=each.get("batch-size"),
            replaced=each.get("replaced", ""),
            refusal=each.get("refusal", ""),
            environment=each.get("environment", {}),
        )


def tried(listed: Listed, root: Path, options: argparse.Namespace, shared: Mapping[str, str]) -> Row:
    """Gives the command in the script's folder and looks at what it leaves behind."""
    command = [str(Path(sys.executable).with_name("autofit"))]
    if options.tune:
        command += ["tune", *listed.options(root, sized=False), "--gpu-mem=24G", "--json"]
    else:
        command += ["estimate", *listed.options(root, sized=True), f"--gpu={options.gpu}", "--json"]
    folder = listed.home(root) / listed.folder
    mark = uuid.uuid4().hex
    environment = environment_for(root, {**shared, **listed.environment}) | {_MARK: mark}
    before = digests(listed.home(root))
    start = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            printed, told = process.communicate(timeout=options.deadline)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.terminate()
            code = None
            try:
                printed, told = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                end_marked(mark)
                printed, told = process.communicate()
    seconds = time.monotonic() - start
    left = end_marked(mark)
    after = digests(listed.home(root))
    import_seconds = imported(folder, listed.script, environment)
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        text = "\n".join(
            (shlex.join(command), f"exit code {code}", "--- stdout", printed, "--- stderr", told)
        )
        (options.logs / f"{listed.name.replace('/', '-')}.txt").write_text(text)
    outcome, says = judged(listed, code, printed, told)
    is_answered = outcome is Outcome.ANSWERED
    if is_answered and not options.tune and seconds > import_seconds + options.allowed:
        outcome = Outcome.SLOW
    return Row(
        listed=listed,
        is_answered=is_answered,
        outcome=outcome,
        says=says,
        seconds=seconds,
        import_seconds=import_seconds,
        changed=tuple(
            sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        ),
        left=left,
    )


def environment_for(root: Path, added: Mapping[str, str]) -> dict[str, str]:
    """This process's, with no settings of autofit but its folder for state."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("AUTOFIT_") or key == "AUTOFIT_STATE_DIR"
    }
    return environment | {key: value.format(root=root) for key, value in added.items()}


def judged(listed: Listed, code: int | None, printed: str, told: str) -> tuple[Outcome, str]:
    if code is None:
        return Outcome.SLOW, "no answer by the deadline"
    if frame := _FRAME.search(told) or _FRAME.search(printed):
        last = [each for each in told.strip().splitlines() if each.strip()]
        return Outcome.CRASHED, f"{frame['file']}:{frame['line']}: {last[-1] if last else ''}"
    try:
        document = json.loads(printed)
    except json.JSONDecodeError:
        return (
            Outcome.CRASHED,
            f"exit code {code}, and no document: {printed.strip()[-200:]}{told.strip()[-200:]}",
        )
    if code == _NOTHING_FITS and document.get("best", document) is None:
        return Outcome.ANSWERED, "nothing fits"
    if code:
        message = str(document.get("message", document))
        return (Outcome.REFUSED if listed.refusal else Outcome.WRONGLY), message
    best = document.get("best", document)
    peak = best.get("peak_reserved_bytes") or best.get("interval", {}).get("likely_bytes") or 0
    is_other = best is document and listed.batch_size not in (None, best.get("batch_size"))
    outcome = Outcome.WRONG_BATCH if is_other else Outcome.ANSWERED
    return outcome, f"batch {best.get('batch_size')}: {peak / 2**30:.2f} GiB"


def digests(folder: Path) -> dict[str, str]:
    """What distinguishes each file below a folder from what it was."""
    found = {}
    for directory, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in files:
            path = Path(directory, name)
            if path.is_symlink() or not path.is_file():
                continue
            status = path.stat()
            if status.st_size > _WHOLE_DIGEST_BYTES:
                digest = f"{status.st_size} {status.st_mtime_ns}"
            else:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = digest
    return found


def imported(folder: Path, script: str, environment: Mapping[str, str]) -> float:
    """Seconds of a process that imports what a script's file imports, and ends."""
    tree = ast.parse((folder / script).read_text())
    wanted = [ast.unparse(each) for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    code = textwrap.dedent(
        """
        import contextlib, json, sys
        sys.path[:0] = [{beside!r}, {root!r}]
        import torch
        from autofit_workers.workload.libraries.importing import without_missing_operators
        with without_missing_operators():
            for each in json.loads(sys.stdin.read()):
                with contextlib.suppress(Exception):
                    exec(each, {{"__name__": "imports"}})
        """
    ).format(beside=str((folder / script).resolve().parent), root=str(ROOT))
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=dict(environment),
        input=json.dumps([each for each in wanted if "__future__" not in each]),
        text=True,
        capture_output=True,
        check=False,
    )
    return time.monotonic() - start


def end_marked(mark: str) -> tuple[str, ...]:
    """Ends the processes that carry the mark in their environment, and says which they were."""
    until = time.monotonic() + _GRACE_SECONDS
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return tuple(left.values())


def marked(mark: str) -> dict[int, str]:
    found = {}
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        try:
            if f"{_MARK}={mark}".encode() in (each / "environ").read_bytes().split(b"\0"):
                found[int(each.name)] = (
                    (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100].strip()
                )
        except OSError:
            continue
    return {process: command for process, command in found.items() if command}  # those that ended have none


def header() -> str:
    return f"| script | outcome | s | import | changed | left | what it says |\n{'|---' * 7}|"


def line(row: Row) -> str:
    cells = (
        row.listed.name,
        row.outcome,
        f"{row.seconds:.1f}",
        f"{row.import_seconds:.1f}",
        ", ".join(row.changed[:3]) + (f" and {len(row.changed) - 3} more" if len(row.changed) > 3 else ""),
        ", ".join(row.left),
        row.says,
    )
    return "| " + " | ".join(" ".join(each.replace("|", "\\|").split()) for each in cells) + " |"


def summary(rows: list[Row]) -> str:
    counted = Counter(row.outcome for row in rows)
    to_answer = [row for row in rows if not row.listed.refusal]
    answered = sum(
        row.outcome in (Outcome.ANSWERED, Outcome.SLOW) and "batch" in row.says for row in to_answer
    )
    return "\n".join(
        (
            ", ".join(f"{counted[each]} {each}" for each in Outcome if counted[each]),
            f"answered of those that have an answer: {answered} of {len(to_answer)}, "
            f"{100 * answered / max(len(to_answer), 1):.0f} %",
            f"changed a file: {sum(bool(row.changed) for row in rows)}; "
            f"left a process: {sum(bool(row.left) for row in rows)}",
        )
    )


if __name__ == "__main__":
    main()
