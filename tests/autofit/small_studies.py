"""Fixtures of the tests of `search` and `study`: curves, outcomes and small studies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofit.search.space import SearchSpace
from autofit.study.study import Ask, TuningStudy
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict

BUDGET_BYTES = 10_000


class TabulatedCurve:
    """A curve given as tables from batch 1 on, which records the batch sizes that it was asked for."""

    def __init__(self, reserved: list[int], live: list[int]) -> None:
        self.reserved = reserved
        self.live = live
        self.evaluated: list[int] = []

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        self.evaluated.append(batch_size)
        peak = self.reserved[batch_size - 1]
        return peak if stop_above_bytes is None else min(peak, stop_above_bytes + 1)

    def lower_bound_bytes(self, batch_size: int) -> int:
        return self.live[batch_size - 1]

    def brute_force(self, budget_bytes: int) -> int | None:
        return max((b for b, peak in enumerate(self.reserved, 1) if peak <= budget_bytes), default=None)


@pytest.fixture
def budget_bytes() -> int:
    return BUDGET_BYTES


@pytest.fixture
def random_curve() -> Callable[..., TabulatedCurve]:
    """Makes a curve of a random kind: live bytes never fall, reserved bytes are bumps above them."""

    def make(rng: random.Random, num_batches: int = 300) -> TabulatedCurve:
        value = rng.choice([0, BUDGET_BYTES // 2, BUDGET_BYTES * 2 // 3])
        slope = rng.choice([1, 20, 50, 300, 4000])
        live = []
        for _ in range(num_batches):
            value += rng.choice([slope, rng.randrange(2 * slope + 1), 0])
            live.append(value)
        size = rng.choice([1, 10, 100, 2000])
        return TabulatedCurve([low + rng.randrange(size) for low in live], live)

    return make


@pytest.fixture
def tabulated_curve() -> type[TabulatedCurve]:
    return TabulatedCurve


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace(choices={"conv_algo": ("cudnn", "native")}, max_batch=300)


@pytest.fixture(params=["journal", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A journal's path or an SQLite URL, as the test's parameter says."""
    return {
        "journal": str(tmp_path / "mine.journal"),
        "sqlite": f"sqlite:///{tmp_path / 'studies.db'}",
    }[request.param]


@pytest.fixture
def open_study(space: SearchSpace) -> Iterator[Callable[..., TuningStudy]]:
    """Opens a study with default settings; all are closed at the end of the test."""
    opened = []

    def open_one(**options: object) -> TuningStudy:
        defaults = {"budget_bytes": BUDGET_BYTES, "settings": {"workload": "w"}, "name": "mine", "seed": 0}
        study = TuningStudy.open(**{"space": space, **defaults, **options})  # type: ignore[arg-type]
        opened.append(study)
        return study

    yield open_one
    for study in opened:
        study.close()


@pytest.fixture
def outcome_of() -> Callable[..., TrialOutcome]:
    """Makes the outcome of a trial; its peak decides whether it fits, unless a verdict is given."""

    def make(
        ask: Ask,
        peak_bytes: int | None = None,
        *,
        verdict: Verdict | None = None,
        trace_json: str | None = None,
    ) -> TrialOutcome:
        if verdict is None:
            assert peak_bytes is not None
            verdict = Verdict.FITS if peak_bytes <= BUDGET_BYTES else Verdict.OOM
        return TrialOutcome(
            verdict=verdict,
            evidence=Evidence.MEASURED,
            device=Device(kind="cuda", name="card"),
            batch_size=ask.batch_size,
            knobs=ask.knobs,
            steady=Peaks(reserved_bytes=peak_bytes),
            trace_json=trace_json,
        )

    return make


@pytest.fixture
def run_study(outcome_of: Callable[..., TrialOutcome]) -> Callable[..., dict[Knobs, list[int]]]:
    """Runs a study to its end, with the peaks that `peak_bytes(knobs, batch_size)` returns."""

    def run(study: TuningStudy, peak_bytes: Callable[[Knobs, int], int]) -> dict[Knobs, list[int]]:
        tried: dict[Knobs, list[int]] = {}
        while (ask := study.ask()) is not None:
            tried.setdefault(ask.knobs, []).append(ask.batch_size)
            study.tell(ask.trial_number, outcome_of(ask, peak_bytes(ask.knobs, ask.batch_size)))
        return tried

    return run
