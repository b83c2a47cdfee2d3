"""What the benches of measured answers share: a setting, its search as a user starts it, one trial."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.settings.workloads import refer

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit.settings.resolve import resolve_settings  # noqa: E402
from autofit.settings.tune_settings import TuneSettings  # noqa: E402
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec  # noqa: E402
from autofit_workers.trials.outcomes import processor_name  # noqa: E402
from autofit_workers.trials.run import run  # noqa: E402

DEFAULTS = {
    "model": "davenet-audio",
    "gpu-mem": "1000M",
    "optimizer": "adam",
    "threads": "2",
    "dispatch": "ray",
}
# The margin is for what the prediction of a card leaves out. Here sizes are held against the limit itself.
_FIXED = {"device": "cpu", "margin": "0%", "max-batch": "256", "deadline": "900"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A workload under a limit, by the options of `autofit tune`."""

    options: dict[str, str]

    @property
    def settings(self) -> TuneSettings:
        given = {name.replace("-", "_"): value for name, value in self.options.items()}
        return resolve_settings(given, {}, None)

    @property
    def budget_bytes(self) -> int:
        budget_bytes = self.settings.gpu_mem_bytes
        assert budget_bytes is not None
        return budget_bytes

    def spec(self, batch_size: int, *, num_steps: int = 3) -> TrialSpec:
        settings = self.settings
        return TrialSpec(
            workload=refer(settings.model),
            batch_size=batch_size,
            probe=Probe.CPU,
            knobs=settings.configuration("a bench"),
            budget_bytes=self.budget_bytes,
            num_threads=settings.num_threads,
            num_steps=num_steps,
            deadline_seconds=settings.deadline_seconds,
        )

    def measure(self, batch_size: int, *, num_steps: int = 3) -> TrialOutcome:
        """Runs one size in a fresh process under the limit."""
        return run(self.spec(batch_size, num_steps=num_steps))

    def __str__(self) -> str:
        return " ".join(f"--{name} {value}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What `autofit tune` answered.

    Attributes:
        wall_seconds: of the whole command, from its start in a shell.
        trial_seconds: of its trials' processes, together.
        trials: each with its batch size, verdict, and seconds.
    """

    largest_batch: int | None
    first_failing_batch: int | None
    wall_seconds: float
    trials: tuple[tuple[int, str, float], ...]

    @property
    def trial_seconds(self) -> float:
        return sum(seconds for _, _, seconds in self.trials)


def tune(setting: Setting) -> Tuned:
    """Runs the command with an empty state directory, so that nothing is known beforehand."""
    with tempfile.TemporaryDirectory() as state:
        journal = Path(state) / "bench.journal"
        options = {**setting.options, "storage": str(journal), "study": "bench"}
        arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "autofit.cli", "tune", "--json", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "AUTOFIT_STATE_DIR": state},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        wall_seconds = time.monotonic() - started
        document = json.loads(done.stdout)
        if "frontier" not in document:
            raise SystemExit(f"autofit tune exits with {done.returncode}: {document['message']}")
        (entry,) = document["frontier"]
        return Tuned(
            largest_batch=entry["largest_batch"],
            first_failing_batch=entry["first_failing_batch"],
            wall_seconds=wall_seconds,
            trials=tuple(_trials(journal)),
        )


def _trials(journal: Path) -> list[tuple[int, str, float]]:
    """The trials of a study, from its journal: each outcome is an attribute of its trial."""
    outcomes = [
        TrialOutcome.from_json(attributes["outcome"])
        for line in journal.read_text(encoding="utf-8").splitlines()
        if "outcome" in (attributes := _attributes(json.loads(line)))
    ]
    return [(outcome.batch_size, str(outcome.verdict), outcome.wall_seconds) for outcome in outcomes]


def _attributes(operation: dict[str, Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = operation.get("user_attr", {})
    return attributes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that make a setting."""
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", default=default, help=f"as of `autofit tune` [{default}]")


def setting_of(options: argparse.Namespace) -> Setting:
    """The setting that was asked for."""
    asked = {name: getattr(options, name.replace("-", "_")) for name in DEFAULTS}
    return Setting(options={**asked, **_FIXED})


def machine() -> str:
    """Where a table was made, in one line: it decides the seconds."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{processor_name()}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}"
