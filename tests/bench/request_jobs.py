"""Jobs of the simulated cluster: measured runs of the tables, each with what is predicted of it.

Which rows they are is decided by digests of names, so that neither a measurement nor an error has a part in
it: of each table the models come in the order of their SHA-256, and of each model its first rows in the same
order, until there are as many as the table gives. A row that is not predicted, or that ran out of memory, is
replaced by none: the bench names it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from tests.bench.tables.catalogue import TABLES
from tests.bench.tables.rows import Row

# So many jobs of each table; together 200.
VISION = {"timm": 150, "xmem": 30}
LANGUAGE = {"optimum_benchmark": 14, "peft": 6}
_ROWS_OF_A_MODEL = {"timm": 3, "xmem": 5, "peft": 1, "optimum_benchmark": 1}
# What a card must hold at once; peft's table has what is reserved after the longest steps.
_RESERVED = ("reserved peak", "reserved after long steps")

Each = TypeVar("Each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Run of a table that is placed on the cluster.

    Attributes:
        name: table, model and batch.
        table: name of the table.
        real_bytes: reserved peak that was measured, without what the process held outside the allocator.
        safe_bytes: high end of the predicted reserved peak.
    """

    name: str
    table: str
    real_bytes: int
    safe_bytes: int


def in_digest_order(rows: Iterable[Each], name: Callable[[Each], str]) -> list[Each]:
    """Rows in the order of the SHA-256 of their names, which looks at nothing that was measured."""
    return sorted(rows, key=lambda row: hashlib.sha256(name(row).encode()).hexdigest())


def chosen(
    rows: Iterable[Each],
    *,
    number: int,
    rows_of_a_model: int,
    model: Callable[[Each], str],
    name: Callable[[Each], str],
) -> list[Each]:
    """The rows of a table that become jobs.

    Args:
        number: how many, at most.
        rows_of_a_model: how many of one model, at most.
    """
    by_model: defaultdict[str, list[Each]] = defaultdict(list)
    for row in in_digest_order(rows, name):
        by_model[model(row)].append(row)
    models = in_digest_order(by_model, str)
    return [row for each in models for row in by_model[each][:rows_of_a_model]][:number]


def vision_rows(folder: Path) -> dict[str, list[Row]]:
    """Chosen rows of the vision tables, by table; those whose peak was measured."""
    return {
        table: chosen(
            [row for row in TABLES[table].read(folder) if row.measured_bytes is not None],
            number=number,
            rows_of_a_model=_ROWS_OF_A_MODEL[table],
            model=lambda row: row.model,
            name=lambda row: row.name,
        )
        for table, number in VISION.items()
    }


def vision_jobs(rows: Mapping[str, Sequence[Row]], options: argparse.Namespace) -> Iterator[Job]:
    """Yields the vision rows with their predictions.

    What the tables hold beside the allocator's peak is fitted as the accuracy bench fits it, on the chosen
    rows of the other families.
    """
    from tests.bench.accuracy import scores, with_releases

    for table, selected in rows.items():
        available, missing = with_releases(list(selected))
        if missing:
            print(f"{table}: {', '.join(missing)} cannot be installed", file=sys.stderr)
        for scored in scores(TABLES[table], available, options):
            if scored.failed:
                print(f"{scored.row.name}: {scored.prediction.failure}", file=sys.stderr)
                continue
            yield Job(
                name=scored.row.name,
                table=table,
                real_bytes=scored.real_bytes,
                safe_bytes=scored.prediction.safe_bytes,
            )


def language_jobs(folder: Path, num_processes: int) -> Iterator[Job]:
    """Yields runs of language models, with their predictions."""
    from tests.bench import language_models

    for table, number in LANGUAGE.items():
        runs = chosen(
            [
                run
                for run in language_models.TABLES[table].read(folder)
                if run.fits and not set(run.measured).isdisjoint(_RESERVED)
            ],
            number=number,
            rows_of_a_model=_ROWS_OF_A_MODEL[table],
            model=lambda run: run.name,
            name=lambda run: run.name,
        )
        runs.sort(key=lambda run: run.name)  # runs that share their traces follow each other
        with (
            tempfile.TemporaryDirectory() as temporary,
            ProcessPoolExecutor(
                num_processes,
                mp_context=get_context("spawn"),
                initializer=language_models._begin,
                initargs=(temporary, (), ()),
            ) as pool,
        ):
            for run, answer in zip(runs, pool.map(language_models.predict, runs), strict=True):
                quantity = next(each for each in _RESERVED if each in run.measured)
                name = f"{table} {run.name}"
                if quantity not in answer.safe:
                    print(f"{name}: {answer.failure or 'said not to run'}", file=sys.stderr)
                    continue
                yield Job(
                    name=name,
                    table=table,
                    real_bytes=run.measured[quantity],
                    safe_bytes=answer.safe[quantity],
                )


def read_jobs(path: Path) -> list[Job]:
    """Jobs that an earlier run of the bench wrote."""
    return [Job(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def write_jobs(jobs: Iterable[Job], path: Path) -> None:
    documents: list[dict[str, Any]] = [dataclasses.asdict(job) for job in jobs]
    path.write_text(json.dumps(documents, indent=1), encoding="utf-8")


def predicted_jobs(folder: Path, cache: Path | None, num_processes: int | None) -> list[Job]:
    """All jobs, predicted here."""
    from tests.bench.plan_sources import default_source

    processes = num_processes or os.cpu_count() or 1
    options = argparse.Namespace(
        cache=cache, digest=None, plans=default_source(), jobs=processes, ablate=False, only_trace=False
    )
    return [*vision_jobs(vision_rows(folder), options), *language_jobs(folder, processes)]
