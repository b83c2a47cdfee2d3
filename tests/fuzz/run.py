"""Reads many hostile inputs, and watches how each ends, how long it takes and what memory.

    python tests/fuzz/run.py --inputs 100000

Every hundredth input goes through the command line, and of those every fiftieth in a process of its own. An
input that fails is kept in the folder `--failed`, with what makes it again.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

from autofit.errors import AutofitError, ExitCode
from tests.fuzz.command_lines import CommandLine, call, call_process, make_command_line
from tests.fuzz.hostile import MOST_BYTES
from tests.fuzz.parsers import PARSERS

SMALL_BYTES = 100_000
MOST_SECONDS = {True: 2.0, False: 5.0}  # by whether an input is small
MOST_MEMORY_BYTES = 500_000_000
CODES = {int(code) for code in ExitCode if code not in (ExitCode.INTERNAL, ExitCode.READER_GONE)}
_HANG_SECONDS = 60
_TRIMMED_BYTES = 250 << 20


@dataclass(slots=True)
class Tally:
    """What came of the inputs of one kind."""

    num_inputs: int = 0
    num_refused: int = 0
    most_seconds: float = 0.0
    most_bytes: int = 0
    codes: collections.Counter[int] = field(default_factory=collections.Counter)


@dataclass(frozen=True, slots=True)
class Fault:
    """An input that ended otherwise than it may."""

    seed: str
    kind: str
    what: str
    data: bytes


class Fuzz:
    """Reads inputs one after the other, in a folder that it may write to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tallies = {name: Tally() for name in (*PARSERS, "command line", "process")}
        self.faults: list[Fault] = []

    def read(self, kind: str, seed: str) -> None:
        """Makes the input of a seed, and reads it."""
        parser = PARSERS[kind]
        data = parser.make(Random(seed))[:MOST_BYTES]
        self._watched(kind, seed, data, lambda: parser.read(data, self._folder))

    def call(self, seed: str, *, in_process: bool = False) -> None:
        """Makes the command line of a seed, and calls it."""
        line = make_command_line(Random(seed), self._folder)
        if line.file is not None:
            Path(line.file[0]).write_bytes(line.file[1][:MOST_BYTES])
        data = line.file[1] if line.file else repr((line.arguments, line.variables)).encode(errors="replace")
        kind = "process" if in_process else "command line"
        self._watched(kind, seed, data, lambda: self._called(line, call_process if in_process else call))
        (self._folder / "out").unlink(missing_ok=True)

    def _called(self, line: CommandLine, run: Callable[[CommandLine], tuple[int, str]]) -> None:
        code, printed = run(line)
        kind = "process" if run is call_process else "command line"
        self.tallies[kind].codes[code] += 1
        if code not in CODES:
            raise AssertionError(f"exit code {code} of {line.arguments[:4]}: {printed[-500:]}")
        if "Traceback (most recent" in printed:
            raise AssertionError(f"a traceback of {line.arguments[:4]}: {printed[-500:]}")

    def _watched(self, kind: str, seed: str, data: bytes, read: Callable[[], None]) -> None:
        tally = self.tallies[kind]
        tally.num_inputs += 1
        before_bytes = _resident_bytes()
        begin = time.process_time()
        signal.alarm(_HANG_SECONDS)
        try:
            read()
        except AutofitError:
            tally.num_refused += 1
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what is looked for
            self.faults.append(
                Fault(seed, kind, "".join(traceback.format_exception(error)[-4:])[-1500:], data)
            )
        finally:
            signal.alarm(0)
        seconds = time.process_time() - begin
        num_bytes = max(0, _status("VmHWM") - before_bytes)
        tally.most_seconds = max(tally.most_seconds, seconds)
        tally.most_bytes = max(tally.most_bytes, num_bytes)
        if seconds > MOST_SECONDS[len(data) <= SMALL_BYTES]:
            self.faults.append(Fault(seed, kind, f"{seconds:.1f} s for {len(data)} bytes", data))
        if num_bytes > MOST_MEMORY_BYTES:
            self.faults.append(Fault(seed, kind, f"{num_bytes >> 20} MiB for {len(data)} bytes", data))

    def report(self) -> Iterator[str]:
        """A line for each kind, and one for all."""
        for kind, tally in self.tallies.items():
            if tally.num_inputs:
                codes = " ".join(f"{code}×{number}" for code, number in sorted(tally.codes.items()))
                yield (
                    f"{kind:<13} {tally.num_inputs:>7,} inputs, {tally.num_refused:>6,} refused, "
                    f"most {tally.most_seconds:5.2f} s CPU, {tally.most_bytes >> 20:>4} MiB  {codes}".rstrip()
                )
        total = sum(tally.num_inputs for tally in self.tallies.values())
        yield f"{total:,} inputs of at most {MOST_BYTES:,} bytes: {len(self.faults)} faults"


def run(
    num_inputs: int, seed: int, folder: Path, progress: Callable[[str], None] = lambda _line: None
) -> Fuzz:
    """Reads so many inputs; each hundredth through the command line."""
    fuzz, kinds = Fuzz(folder), list(PARSERS)
    signal.signal(signal.SIGALRM, _hangs)
    num_told = 0
    for number in range(num_inputs):
        name = f"{seed}/{number}"
        if number % 100 == 99:
            fuzz.call(name, in_process=number % 5000 == 4999)
        else:
            fuzz.read(kinds[number % len(kinds)], name)
        for fault in fuzz.faults[num_told:]:
            progress(f"--only {fault.kind!r} {fault.seed}: {fault.what}")
        num_told = len(fuzz.faults)
        if number % 5000 == 4999:
            progress(f"{number + 1:,} read, {num_told} faults, {time.process_time():.0f} s CPU")
    return fuzz


def _hangs(_signal: int, _frame: object) -> NoReturn:
    raise TimeoutError(f"not read after {_HANG_SECONDS} s")


def _resident_bytes() -> int:
    """What this process holds now, once it has given back what it can; its peak is counted anew from here."""
    if _status("VmRSS") > _TRIMMED_BYTES:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    _forget_peak()
    return _status("VmRSS")


def _status(name: str) -> int:
    """A number of bytes that the kernel knows of this process; 0 where it does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _forget_peak() -> None:
    """Lets the kernel count the peak anew (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", metavar="KIND SEED", nargs=2, help="one input, by what a fault says")
    options.add_argument(
        "--failed", type=Path, default=Path("fuzz-failed"), help="folder for inputs that failed"
    )
    given = options.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begin = time.monotonic()
    in_memory = Path("/dev/shm")  # where there is such a place, nothing waits for a disk
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        os.environ["AUTOFIT_STATE_DIR"] = str(Path(folder, "state"))
        if given.only:
            kind, seed = given.only
            fuzz = Fuzz(Path(folder))
            fuzz.read(kind, seed) if kind in PARSERS else fuzz.call(seed, in_process=kind == "process")
            print(*(fault.what for fault in fuzz.faults), sep="\n")
        else:
            fuzz = run(given.inputs, given.seed, Path(folder), lambda line: print(line, flush=True))
    for fault in fuzz.faults:
        given.failed.mkdir(parents=True, exist_ok=True)
        path = given.failed / f"{fault.kind.replace(' ', '-')}-{fault.seed.replace('/', '-')}"
        path.write_bytes(fault.data)
    print(*fuzz.report(), sep="\n")
    print(f"seed {given.seed}, {time.monotonic() - begin:.0f} s")
    return min(len(fuzz.faults), 1)


if __name__ == "__main__":
    sys.exit(main())
