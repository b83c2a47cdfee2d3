"""Whether `autofit tune` finds what trying every size finds: `python tests/bench/sweep.py`.

Runs every size from three below to three above the answer of `autofit tune --device cpu`, each in
fresh processes, three times, and prints whether they agree. A trial of the default workload takes a minute;
to try the script itself, take less: `--model tests/bench/wide_workload.py:wide --gpu-mem 930M --reach 1`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit_workers.spec.protocol import TrialOutcome, Verdict
from tests.bench.cpu_trials import Setting, Tuned, add_options, machine, setting_of, tune

MAX_TRIALS = 6
MIB = 2**20


def sizes_near(answer: int, reach: int) -> list[int]:
    """The answer and the next size first, then those further and further off."""
    sizes = sorted(
        range(answer - reach, answer + max(reach, 1) + 1), key=lambda size: abs(size - answer - 0.25)
    )
    return [size for size in sizes if size >= 1]


def sweep(setting: Setting, sizes: list[int], times: int) -> dict[int, list[TrialOutcome]]:
    """Every size, so many times; each row is printed as soon as it is complete."""
    print(f"| batch | {' | '.join(f'run {number + 1}' for number in range(times))} | peaks, MiB | seconds |")
    print("|---|" + "---|" * (times + 2))
    outcomes = {}
    for size in sizes:
        runs = outcomes[size] = [setting.measure(size) for _ in range(times)]
        verdicts = " | ".join(str(outcome.verdict) for outcome in runs)
        peaks = ", ".join(_peak(outcome) for outcome in runs)
        seconds = sum(outcome.wall_seconds for outcome in runs)
        print(f"| {size} | {verdicts} | {peaks} | {seconds:.0f} |", flush=True)
    return outcomes


def _peak(outcome: TrialOutcome) -> str:
    if outcome.verdict is not Verdict.FITS or outcome.budgeted_bytes is None:
        return "–"
    return f"{outcome.budgeted_bytes / MIB:.1f}"


def complaints(outcomes: dict[int, list[TrialOutcome]], tuned: Tuned) -> Iterator[str]:
    """What of the answer the sweep does not bear out."""
    answer = tuned.largest_batch
    assert answer is not None
    if any(outcome.verdict is not Verdict.FITS for outcome in outcomes[answer]):
        yield f"batch {answer}, the answer, did not fit every time"
    for size, runs in sorted(outcomes.items()):
        num_fits = sum(outcome.verdict is Verdict.FITS for outcome in runs)
        if size > answer and num_fits:
            yield f"batch {size}, beyond the answer, fitted {num_fits} of {len(runs)} times"
    if tuned.first_failing_batch != answer + 1:
        yield f"the next size is not known to fail: {tuned.first_failing_batch}"
    if (answer + 1, str(Verdict.OOM)) not in {trial[:2] for trial in tuned.trials}:
        yield f"the search did not see batch {answer + 1} fail"
    if len(tuned.trials) > MAX_TRIALS:
        yield f"the search took {len(tuned.trials)} trials, more than {MAX_TRIALS}"


def main() -> int:
    """Prints the tables; 1 if they disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser)
    parser.add_argument("--reach", type=int, default=3, help="sizes on either side; 0: answer and next [3]")
    parser.add_argument("--times", type=int, default=3, help="runs of each size [3]")
    options = parser.parse_args()
    setting = setting_of(options)
    print(f"{machine()}\n\nautofit tune {setting}\n", flush=True)
    tuned = tune(setting)
    print("| trial | batch | verdict | seconds |\n|---|---|---|---|")
    for number, (size, verdict, seconds) in enumerate(tuned.trials):
        print(f"| {number} | {size} | {verdict} | {seconds:.0f} |")
    print(f"\nanswer: {tuned.largest_batch}, after {tuned.wall_seconds:.0f} s\n", flush=True)
    if tuned.largest_batch is None:
        return 1
    outcomes = sweep(setting, sizes_near(tuned.largest_batch, options.reach), options.times)
    found = list(complaints(outcomes, tuned))
    print("\n" + ("\n".join(found) or "the sweep and the search agree"))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
