"""Answers of the bench of language models, and a file that keeps them from one run of it to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tests.bench.language.runs import Measured

MeasuredRun = TypeVar("MeasuredRun", bound=Measured)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is predicted of one run, or why nothing is.

    Attributes:
        predicted: bytes, by quantity.
        safe: the high ends of those that have one, likewise, and no more than their cards have.
        others: bytes that others say, by quantity, by who says so.
        fits: whether it is predicted to run on its card.
        seconds: how long it took.
    """

    predicted: dict[str, int] = field(default_factory=dict)
    safe: dict[str, int] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    fits: bool = True
    failure: str = ""
    seconds: float = 0.0


class KeptAnswers:
    """Answers of runs, by table, name and quantities, in a JSON file that is written after each of them.

    They are those of the code that made them: after a change of it, remove the file.

    Args:
        file: None to keep nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._tables: dict[str, dict[str, Answer]] = {}
        if file is not None and file.exists():
            for table, answers in json.loads(file.read_text(encoding="utf-8")).items():
                self._tables[table] = {name: Answer(**answer) for name, answer in answers.items()}

    def of(self, run: Measured) -> Answer | None:
        return self._tables.get(run.table, {}).get(_key(run))

    def keep(self, run: Measured, answer: Answer) -> None:
        self._tables.setdefault(run.table, {})[_key(run)] = answer
        if self._file is not None:
            tables = {
                table: {name: asdict(each) for name, each in answers.items()}
                for table, answers in self._tables.items()
            }
            beside = self._file.with_name(f"{self._file.name}.new")
            beside.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
            beside.replace(self._file)


def _key(run: Measured) -> str:
    return ": ".join((run.name, *run.measured))


def answered(
    runs: Sequence[MeasuredRun],
    predict: Callable[[Measured], Answer],
    pool: Executor,
    kept: KeptAnswers,
    most_new: int | None = None,
) -> tuple[list[MeasuredRun], list[Answer]]:
    """Runs that have an answer, with their answers.

    Args:
        predict: predicts a run, in a process of the pool. It is not called for a run that was predicted
            before; a run that failed is tried once more.
        most_new: how many runs are predicted at most; None for all. Others of which nothing is kept are
            left out.
    """
    wanted = [run for run in runs if (known := kept.of(run)) is None or known.failure]
    futures = {pool.submit(predict, run): run for run in wanted[:most_new]}
    for future in as_completed(futures):
        kept.keep(futures[future], future.result())
    pairs = [(run, answer) for run in runs if (answer := kept.of(run)) is not None]
    return [run for run, _ in pairs], [answer for _, answer in pairs]


def timed(answer: Answer, seconds: float) -> Answer:
    return replace(answer, seconds=round(seconds, 1))
