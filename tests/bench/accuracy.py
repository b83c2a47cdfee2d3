"""How true predictions are: `python tests/bench/accuracy.py --all | [--table xmem] [--family acceptance]`.

Reads tables of others' measurements (`--tables`, default `../shared/groundtruth` beside the project),
predicts every row of them, and prints the errors per table and family as Markdown, beside what other
predictors said of the same rows. Fails where a model could not be predicted, and names it. Traces are kept
in `--cache`; a second run, after a change of what replays them, takes a fraction of the first one.
Wants timm, torchvision and transformers beside the project. Where a table says which other release of one
of them ran, pip puts that into a folder of its own in the state directory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit import paths  # noqa: E402
from tests.bench import accuracy_report, libraries  # noqa: E402
from tests.bench.plan_sources import SOURCES, default_source  # noqa: E402
from tests.bench.predictions import predict  # noqa: E402
from tests.bench.scoring import Scored, with_constants  # noqa: E402
from tests.bench.tables.catalogue import TABLES  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402
from tests.bench.tables.rows import Row, Table  # noqa: E402
from tests.bench.traces import tracing_digest  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=Path, default=DEFAULT_TABLES, help="folder of the tables")
    parser.add_argument(
        "--table", action="append", choices=TABLES, help="one of them; default: all there are"
    )
    parser.add_argument("--all", action="store_true", help="all tables, none of which may be missing")
    parser.add_argument("--family", action="append", help="a family, or a class of them such as `acceptance`")
    parser.add_argument("--model", action="append", help="a model as the table names it")
    parser.add_argument("--limit", type=int, help="at most so many models of each table")
    parser.add_argument("--optimizer", help="replaces the optimizer that the table's rows are traced with")
    parser.add_argument("--ablate", action="store_true", help="the error after each part of the model")
    parser.add_argument("--json", type=Path, help="also writes the summaries there")
    parser.add_argument("--rows", type=Path, help="also writes every row there, as CSV")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--cache", type=Path, help="folder of the traces; default: in the state directory")
    parser.add_argument("--plans", choices=SOURCES, default=default_source(), help="who knows cuDNN's plans")
    parser.add_argument("--only-trace", action="store_true", help="fills the cache, predicts nothing")
    parser.add_argument("--digest", help="takes cached traces of this digest, whatever the code has become")
    return parser.parse_args()


def selected(table: Table, options: argparse.Namespace) -> list[Row]:
    """The rows of a table that are asked for."""
    rows = table.read(options.tables)
    if options.family:
        rows = [row for row in rows if {row.family, *row.groups} & set(options.family)]
    if options.model:
        rows = [row for row in rows if row.model in options.model]
    if options.limit is not None:
        models = list(dict.fromkeys(row.model for row in rows))[: options.limit]
        rows = [row for row in rows if row.model in models]
    if options.optimizer:
        rows = [
            dataclasses.replace(row, setting=dataclasses.replace(row.setting, optimizer=options.optimizer))
            for row in rows
        ]
    return rows


def with_releases(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """The rows once the releases that ran are installed, and which of these cannot be.

    The models of such a release are traced with the one that is here.
    """
    releases = sorted({row.setting.release for row in rows} - {""})
    missing = [release for release in releases if not libraries.install(release)]
    return [
        dataclasses.replace(row, setting=dataclasses.replace(row.setting, release=""))
        if row.setting.release in missing
        else row
        for row in rows
    ], missing


def scores(table: Table, rows: list[Row], options: argparse.Namespace) -> list[Scored]:
    """Every row with its prediction."""
    predictions = predict(
        rows,
        cache=options.cache or paths.state_dir() / "bench-traces",
        digest=options.digest or tracing_digest(),
        plans=options.plans,
        num_jobs=options.jobs,
        ablate=options.ablate,
        only_trace=options.only_trace,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    scored = [Scored(row=r, prediction=p) for r, p in zip(rows, predictions, strict=True)]
    return with_constants(scored) if table.has_constant else scored


def main() -> int:
    """Prints the report; 1 where a table that was asked for, a release or a prediction is not there."""
    options = arguments()
    documents: list[dict[str, Any]] = []
    every_row: list[Scored] = []
    complete = True
    for table in TABLES.values():
        if options.table and table.name not in options.table:
            continue
        if not (options.tables / table.file).exists():
            print(f"no table {table.file} in {options.tables}", file=sys.stderr)
            if options.table or options.all:
                return 1
            continue
        rows = selected(table, options)
        if not rows:
            continue
        started = time.monotonic()
        rows, missing = with_releases(rows)
        for release in missing:
            print(f"{release}, which ran, cannot be installed: its models are traced with what is here.\n")
            complete = False
        scored = scores(table, rows, options)
        if options.only_trace:
            continue
        print("\n".join(accuracy_report.markdown(scored)))
        if options.ablate:
            print("\n".join(accuracy_report.ablation(scored)))
        print(f"\n{len(rows)} rows in {time.monotonic() - started:.0f} s\n", flush=True)
        documents.append(accuracy_report.as_json(scored))
        every_row += scored
    if options.json is not None:
        options.json.write_text(json.dumps(documents, indent=1), encoding="utf-8")
    if options.rows is not None:
        accuracy_report.write_rows(options.rows, every_row)
    failed = list(dict.fromkeys(f"{s.row.table}: {s.row.model}" for s in every_row if s.failed))
    if failed:
        print(f"{len(failed)} models could not be predicted: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed) or not complete)


if __name__ == "__main__":
    sys.exit(main())
