"""Whether answers from kept traces are those of first questions: `python tests/bench/second_questions.py`.

Random questions are asked in random order, each of a state directory that has answered all before it, and of
an empty one. The documents have to be equal, but for what is of the run: its times, and whether the
whole answer was stored. Of `check` and `estimate` it is counted too how many needed no trace: sizes that were
traced before, and sizes between those whose traces agree.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autofit.cli import main as autofit
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec
from autofit_workers.trials import door

_MODELS = ("lstm", "davenet-audio", "conv1x1", "big-filter:5", "matmul1x1", "wavenet")
_CARDS = ("t4", "l4", "a100-40g", "h100-80g", "v100-16g")
_BUDGETS = ("2G", "3500M", "6G", "8G", "11G")
# Times, and whether the answer was stored as a whole.
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 24, 31, 40)
_OF_THE_RUN = {"wall_seconds", "answered_seconds", "cached"}


def question(chance: random.Random) -> list[str]:
    """Words of a random command."""
    model, command = chance.choice(_MODELS), chance.choice(("tune", "tune", "check", "estimate"))
    words = [command, "--model", model, "--json"]
    if command == "estimate" or chance.random() < 0.5:
        words += ["--gpu", chance.choice(_CARDS)]
    else:
        words += ["--gpu-mem", chance.choice(_BUDGETS)]
    if command == "tune":
        words += ["--risk", chance.choice(("likely", "safe", "worst"))]
        words += ["--max-batch", "512"]  # so that no question is long
    else:
        words += ["--batch-size", str(chance.choice(_SIZES))]
    words += chance.choice(([], ["--precision", "amp-fp16"], ["--conv-algo", "native"]))
    return words


def asked(words: list[str], state: Path) -> tuple[int, Any]:
    """Exit code and document of a command with a state directory, without what is of the run."""
    os.environ["AUTOFIT_STATE_DIR"] = str(state)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = autofit(words)
    return code, _lasting(json.loads(out.getvalue()))


def _lasting(document: Any) -> Any:
    if isinstance(document, dict):
        if document.get("is_complete") is False:  # advice, which has a time limit
            return None
        return {name: _lasting(value) for name, value in document.items() if name not in _OF_THE_RUN}
    if isinstance(document, list):
        return [_lasting(value) for value in document]
    return document


def _differences(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Yields the places in which two documents differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        for name in dict.fromkeys([*first, *second]):
            yield from _differences(first.get(name), second.get(name), f"{place}.{name}")
    elif isinstance(first, list | tuple) and isinstance(second, type(first)) and len(first) == len(second):
        for number, pair in enumerate(zip(first, second, strict=True)):
            yield from _differences(*pair, f"{place}[{number}]")
    elif first != second:
        yield place


@contextlib.contextmanager
def _counted_trials() -> Iterator[list[int]]:
    """Context manager that yields a list, to which the batch size of each trial that runs is added."""
    sizes: list[int] = []
    run = door.run

    def counted(spec: TrialSpec) -> TrialOutcome:
        sizes.append(spec.batch_size)
        return run(spec)

    door.run = counted
    try:
        yield sizes
    finally:
        door.run = run


def main() -> int:
    """Prints how many answers were equal; 1 if one was not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=300, help="[300]")
    parser.add_argument("--seed", type=int, default=50, help="[50]")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    num_different, first_seconds, second_seconds = 0, 0.0, 0.0
    num_sizes, num_untraced = 0, 0
    with tempfile.TemporaryDirectory() as folder, _counted_trials() as trials:
        known = Path(folder, "known")
        for number in range(options.questions):
            words = question(chance)
            begin = time.perf_counter()
            first = asked(words, Path(folder, f"new-{number}"))
            middle = time.perf_counter()
            del trials[:]
            second = asked(words, known)
            if words[0] != "tune":
                num_sizes += 1
                num_untraced += not trials
            first_seconds += middle - begin
            second_seconds += time.perf_counter() - middle
            places = list(_differences(first, second))
            if places:
                num_different += 1
                print(f"autofit {' '.join(words)} differs in {', '.join(places)}", flush=True)
    print(
        f"{options.questions - num_different} of {options.questions} answers are equal; "
        f"{first_seconds:.0f} s from nothing, {second_seconds:.0f} s from what is known; "
        f"{num_untraced} of {num_sizes} checks and estimates ran no trial"
    )
    return bool(num_different)


if __name__ == "__main__":
    sys.exit(main())
