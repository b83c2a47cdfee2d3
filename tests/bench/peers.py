"""autofit beside Lightning's `scale_batch_size`, on the CPU: `python tests/bench/peers.py`.

All of them look for the largest batch of the same model under the same limit, in one run, each from a
cold start. Lightning's answer is then run in a fresh process, as autofit has done with its own before it
answers. At the end one verifier runs every answer once more, and no time of that counts.

Lightning lives in an environment of its own, which is made where there is none (`--environment`). To try the
script itself: `--model tests/bench/wide_workload.py:wide --gpu-mem 930M --mode power`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.paths import state_dir
from autofit_workers.spec.protocol import Verdict
from autofit_workers.trials.isolate import environment_of
from tests.bench.cpu_trials import ROOT, Setting, add_options, machine, setting_of, tune

MODES = ("power", "binsearch")
_SCALER = Path(__file__).with_name("lightning_scaler.py")
_MOST_TRIALS = {"power": 1.0, "binsearch": 0.5}  # of ours, as a share of that mode's
_SOAK_STEPS = 5  # what `autofit tune` verifies its answer with on the CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one tool came to its answer.

    Attributes:
        answer_seconds: from its start in a shell to its answer.
        verified_seconds: until that answer had also run in a process of its own; None where it did not.
        device_seconds: for how long a process that trained was there.
        num_trials: sizes that really ran, the verification included.
        tried: those sizes, in their order.
    """

    tool: str
    batch_size: int | None
    answer_seconds: float
    verified_seconds: float | None
    device_seconds: float
    num_trials: int
    tried: tuple[int, ...]
    note: str = ""


def run_autofit(setting: Setting) -> Run:
    """autofit's answer is verified when it is given."""
    tuned = tune(setting)
    return Run(
        tool="autofit",
        batch_size=tuned.largest_batch,
        answer_seconds=tuned.wall_seconds,
        verified_seconds=tuned.wall_seconds if tuned.largest_batch is not None else None,
        device_seconds=tuned.trial_seconds,
        num_trials=len(tuned.trials),
        tried=tuple(size for size, _, _ in tuned.trials),
    )


def run_lightning(setting: Setting, mode: str, python: Path) -> Run:
    """Lightning's answer, then one trial of ours in a fresh process."""
    spec = setting.spec(1)
    command = [str(python), "-P", str(_SCALER), "--mode", mode, "--budget-bytes", str(setting.budget_bytes)]
    for name in ("model", "optimizer", "threads"):
        command += [f"--{name}", setting.options[name]]
    started = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **environment_of(spec)},  # the same allocator and threads as in our trials
        capture_output=True,
        text=True,
        check=False,
    )
    answer_seconds = time.monotonic() - started
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        answer = {"batch_size": None, "error": lines[-1], "tried": []}
    else:
        answer = json.loads(done.stdout.splitlines()[-1])
    size, tried = answer["batch_size"], tuple(answer["tried"])
    verified_seconds, device_seconds = None, answer_seconds
    if size is not None:
        outcome = setting.measure(size, num_steps=_SOAK_STEPS)
        device_seconds += outcome.wall_seconds
        tried = (*tried, size)
        if outcome.verdict is Verdict.FITS:
            verified_seconds = device_seconds
    return Run(
        tool=f"Lightning, {mode}",
        batch_size=size,
        answer_seconds=answer_seconds,
        verified_seconds=verified_seconds,
        device_seconds=device_seconds,
        num_trials=len(tried),
        tried=tried,
        note=answer["error"] or "",
    )


def lightning_python(environment: Path) -> Path:
    """The interpreter of Lightning's environment, with the PyTorch of our constraints."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        constraints = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run(
            [python, "-m", "pip", "install", "-q", *constraints, "torch", "pytorch-lightning>=2.6,<3"],
            check=True,
        )
    return python


def print_table(runs: list[Run], fits: dict[int, bool]) -> None:
    """The runs as Markdown."""
    print("| | answer | fits? | trials | answer, s | verified answer, s | device-seconds | sizes run |")
    print("|---|---|---|---|---|---|---|---|")
    for run in runs:
        answer = "none" if run.batch_size is None else str(run.batch_size)
        does_fit = "–" if run.batch_size is None else ("yes" if fits[run.batch_size] else "**no**")
        verified = "–" if run.verified_seconds is None else f"{run.verified_seconds:.0f}"
        sizes = ", ".join(map(str, run.tried))
        print(
            f"| {run.tool} | {answer} | {does_fit} | {run.num_trials} | {run.answer_seconds:.0f} "
            f"| {verified} | {run.device_seconds:.0f} | {sizes} |"
        )
    for run in runs:
        if run.note:
            print(f"\n{run.tool} ended with: {run.note}")


def misses(ours: Run, peers: Mapping[str, Run]) -> list[str]:
    """What of the criterion does not hold; a peer that gave no verified answer is no measure.

    Args:
        peers: by Lightning's mode.
    """
    found = [] if ours.verified_seconds is not None else ["no verified answer"]
    for mode, peer in peers.items():
        if ours.num_trials > _MOST_TRIALS[mode] * peer.num_trials:
            most = f"{_MOST_TRIALS[mode]:.0%} of {mode}'s trials"
            found.append(f"more than {most}: {ours.num_trials} to {peer.num_trials}")
        if ours.verified_seconds is None or peer.verified_seconds is None:
            continue
        if ours.verified_seconds > peer.verified_seconds:
            found.append(
                f"slower to a verified answer than {peer.tool}: "
                f"{ours.verified_seconds:.0f} s to {peer.verified_seconds:.0f} s"
            )
    return found


def main() -> int:
    """Prints the table; 1 if the criterion is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser)
    parser.add_argument(
        "--environment", type=Path, default=state_dir() / "bench-lightning", help="where Lightning is"
    )
    parser.add_argument(
        "--mode", action="append", choices=MODES, help="of Lightning's, repeatable; default: each"
    )
    options = parser.parse_args()
    setting = setting_of(options)
    python = lightning_python(options.environment)
    print(f"{machine()}\n\n{setting}\n", flush=True)
    ours = run_autofit(setting)
    peers = {mode: run_lightning(setting, mode, python) for mode in options.mode or MODES}
    runs = [ours, *peers.values()]
    answers = {run.batch_size for run in runs if run.batch_size is not None}
    fits = {
        size: setting.measure(size, num_steps=_SOAK_STEPS).verdict is Verdict.FITS for size in sorted(answers)
    }
    print_table(runs, fits)
    found = misses(ours, peers)
    print("\n" + ("\n".join(found) or "the criterion holds"), f"\n\n{machine()}", sep="")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
