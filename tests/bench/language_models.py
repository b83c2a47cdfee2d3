"""How true predictions of language models are: `python tests/bench/language_models.py [--table peft]`.

Reads tables of others' measurements (`--tables`, default `../shared/groundtruth` beside the project), traces
each run at its own batch, and prints the errors by table and quantity as Markdown, those of single runs with
`--rows`, and those of others on the same runs with `--beside`. Names every run that could not be traced; such
a run counts as infinitely wrong. Wants transformers and peft beside the project; with `--library`, what ran:
38 of peft's 39 rows ran its commit d787f51b.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit.hardware.budget import DEFAULT_MARGIN  # noqa: E402
from autofit_workers.spec.trace import Trace  # noqa: E402
from tests.bench.language import (  # noqa: E402
    fms_acceleration,
    fms_fsdp,
    fsdp_qlora,
    fsdp_qlora_stages,
    liger,
    litgpt,
    llm_foundry,
    megatron,
    modded_nanogpt,
    ms_swift,
    optimum_benchmark,
    peft,
    qwen_speed,
    vllm_logs,
)
from tests.bench.language.answers import Answer, KeptAnswers, answered, timed  # noqa: E402
from tests.bench.language.runs import Measured, Run, Table, Traced, UntracedRun  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402

_OF = (
    peft,
    fsdp_qlora_stages,
    fms_acceleration,
    fms_fsdp,
    fsdp_qlora,
    litgpt,
    llm_foundry,
    megatron,
    modded_nanogpt,
    ms_swift,
    liger,
    qwen_speed,
    optimum_benchmark,
    vllm_logs,
)
TABLES: dict[str, Table] = {module.TABLE.name: module.TABLE for module in _OF}
_NINTH = 0.9
# What a card must hold at once, of which predictions have a high end.
_HAVE_HIGH_ENDS = frozenset(
    {
        "reserved peak", "reserved on its card", "reserved after long steps",
        "allocated peak", "allocated peak of generate",
    }
)  # fmt: skip
_remembered: dict[str, list[Trace]] = {}


def predict(run: Measured) -> Answer:
    """Predicts a run, in this process."""
    return _answered(_predicted, run)


def predict_beside(run: Measured) -> Answer:
    """Says what others predict of a run, in this process."""
    return _answered(_said_by_others, run)


def _answered(answer: Callable[[Any], Answer], run: Measured) -> Answer:
    began = time.monotonic()
    try:
        said = answer(run)
    except Exception as error:  # noqa: BLE001 - the process boundary
        first_line = str(error).strip().partition("\n")[0]
        said = Answer(failure=f"{type(error).__name__}: {first_line}"[:200])
    return timed(said, time.monotonic() - began)


def _predicted(run: Measured) -> Answer:
    if isinstance(run, UntracedRun):
        return _without_tracing(run)
    if isinstance(run, Run) and run.lengths is not None:
        return _over_texts(run)
    assert isinstance(run, Traced)
    return _of_one_trace(run)


def _said_by_others(run: Traced) -> Answer:
    from tests.bench.language.beside import said_by_others

    return Answer(others=said_by_others(run))


def _of_one_trace(run: Traced) -> Answer:
    from autofit.predict.confidence import classify, shipped_residuals
    from tests.bench.language.runs import QUANTITIES, Seen

    trace = run.trace()
    seen = Seen(trace, run.architecture, run.usable_bytes)
    predicted = {name: QUANTITIES[name](seen) for name in run.measured}
    calibration = shipped_residuals().of(classify(trace), run.architecture)
    most_bytes = sys.maxsize if run.usable_bytes is None else run.usable_bytes
    return Answer(
        predicted=predicted,
        safe={
            name: min(calibration.high_end(predicted[name]), most_bytes)
            for name in _HAVE_HIGH_ENDS.intersection(predicted)
        },
        fits=seen.fits(run.usable_bytes),
    )


def _without_tracing(run: UntracedRun) -> Answer:
    predicted = run.predict()
    return Answer(predicted={name: predicted[name] for name in run.measured})


def _over_texts(run: Run) -> Answer:
    from autofit.predict.confidence import classify, shipped_residuals
    from tests.bench.language.runs import SeenOverTexts
    from tests.bench.language.unlike_lengths import TRACED_LENGTHS

    assert run.lengths is not None
    make = run.lengths.make
    # Rows that differ in nothing that is traced share their traces: one is remembered, as rows follow.
    traced = repr((make, run.batch_size, run.knobs.for_passes(run.knobs.num_passes(run.batch_size))))
    if traced not in _remembered:
        _remembered.clear()
        _remembered[traced] = [run.trace_of(make(length)) for length in TRACED_LENGTHS]
    traces = _remembered[traced]
    seen = SeenOverTexts(traces, run)
    if not seen.fits:
        return Answer(fits=False)
    calibration = shipped_residuals().of(classify(traces[0]), run.architecture)
    return Answer(
        predicted=dict.fromkeys(run.measured, seen.median_bytes()),
        safe=dict.fromkeys(run.measured, calibration.high_end(seen.reserved_bytes[-1])),
    )


def _begin(temporary: str, folders: Sequence[str], hidden: Sequence[str]) -> None:
    """Readies a process: temporary files go to a folder that outlives it, imports come from what ran."""
    tempfile.tempdir = temporary
    own = str(Path(__file__).parent)  # a script's own modules may be called as those beside this file
    sys.path[:] = [folder for folder in sys.path if folder != own]
    sys.path[:0] = folders
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None hides a module


def errors_of(runs: Sequence[Measured], answers: Sequence[Answer], quantity: str) -> list[float]:
    """Relative errors of a quantity, of the runs that measured it; infinite where nothing is predicted."""
    return [
        answer.predicted[quantity] / run.measured[quantity] - 1 if quantity in answer.predicted else math.inf
        for run, answer in zip(runs, answers, strict=True)
        if quantity in run.measured
    ]


def at_share(errors: Sequence[float], share: float) -> float:
    """The smallest error that at least this share of them, without their signs, does not exceed."""
    ordered = sorted(map(abs, errors))
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def safety_line(beyond: Sequence[float]) -> str:
    """What a table says of high ends, given by how much each is above what was measured, as a share.

    A card that the high end fills leaves the margin free, which a run may take too before it fails.
    """
    unsafe = sum((1 + each) / (1 - float(DEFAULT_MARGIN)) < 1 for each in beyond) / len(beyond)
    given_away = sum(max(each, 0.0) for each in beyond) / len(beyond)
    return f"| | at `--risk safe` | {len(beyond)} | unsafe {unsafe:.1%} | given away {given_away:.1%} | |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=Path, default=DEFAULT_TABLES, help="folder of the tables")
    parser.add_argument("--table", action="append", choices=TABLES, help="one of them; default: all")
    parser.add_argument("--group", action="append", help="a method or a model by which a table is split")
    parser.add_argument("--limit", type=int, help="at most so many runs of each table")
    parser.add_argument(
        "--run", action="append", help="runs whose names have this text; may be given several times"
    )
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FILE",
        help="a JSON file of answers: runs that it has are not run again, unless they failed; remove it "
        "after changes of the code",
    )
    parser.add_argument(
        "--most-new",
        type=int,
        metavar="N",
        help="at most so many runs of each table that --kept lacks; 0 prints the table of what is kept",
    )
    parser.add_argument("--rows", action="store_true", help="every run too")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="what PyTorch's MemTracker, accelerate and a rule of thumb say too; traces each run once more",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--library", action="append", default=[], help="a folder to import from first: src of peft, as it ran"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        help="a library to hide, as what ran wants another",
    )
    parser.add_argument(
        "--liger", type=Path, help="a clone of linkedin/Liger-Kernel, whose kernels are then benched too"
    )
    return parser.parse_args()


def _chosen(table: Table, options: argparse.Namespace) -> list[Measured]:
    """Runs of a table that the command line asks for."""
    runs = [run for run in table.read(options.tables) if run.group in (options.group or (run.group,))]
    runs = [run for run in runs if any(text in run.name for text in options.run or ("",))]
    return runs[: options.limit]


def _answers(table: Table, options: argparse.Namespace) -> tuple[list[Measured], list[Answer], list[Answer]]:
    """Runs of a table that are predicted, with what is predicted of each, and what others say."""
    chosen = _chosen(table, options)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            options.jobs,
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(folder, options.library, options.without),
            max_tasks_per_child=1 if table.of_scripts else None,
        ) as pool,
    ):
        runs, answers = answered(chosen, predict, pool, KeptAnswers(options.kept), options.most_new)
        beside = list(pool.map(predict_beside, runs)) if options.beside else [Answer()] * len(runs)
    if len(runs) < len(chosen):
        print(f"{table.name}: {len(runs)} of {len(chosen)} runs; others were not tried", file=sys.stderr)
    return runs, answers, beside


def main() -> int:
    options = _options()
    if options.liger is not None:
        TABLES["liger"] = replace(TABLES["liger"], read=functools.partial(liger.read, clone=options.liger))
    failures = 0
    print("| table | quantity | runs | median | p90 | asked |\n|---|---|---|---|---|---|")
    for name in options.table or TABLES:
        table = TABLES[name]
        runs, answers, beside = _answers(table, options)
        for quantity, (median, ninth) in table.asked.items():
            errors = errors_of(runs, answers, quantity)
            if errors:
                found = f"{at_share(errors, 0.5):.1%} | {at_share(errors, _NINTH):.1%}"
                print(f"| {name} | {quantity} | {len(errors)} | {found} | {median:.1%}, {ninth:.1%} |")
                if safe := [
                    answer.safe[quantity] / run.measured[quantity] - 1
                    for run, answer in zip(runs, answers, strict=True)
                    if quantity in answer.safe
                ]:
                    print(safety_line(safe))
                said = [
                    {rule: dict.fromkeys(run.measured, num_bytes) for rule, num_bytes in run.others.items()}
                    | dict(others.others)
                    for run, others in zip(runs, beside, strict=True)
                ]
                for rule in dict.fromkeys(rule for by_rule in said for rule in by_rule):
                    by_rule = [Answer(predicted=dict(each.get(rule, {}))) for each in said]
                    errors = errors_of(runs, by_rule, quantity)
                    found = f"{at_share(errors, 0.5):.1%} | {at_share(errors, _NINTH):.1%}"
                    print(f"| | {rule} | {len(errors)} | {found} | |")
        if said_to_fit := [
            answer.fits and not answer.failure
            for run, answer in zip(runs, answers, strict=True)
            if run.fits and not run.measured
        ]:
            print(f"| {name} | ran | {len(said_to_fit)} | likely to fit: {sum(said_to_fit)} | | all |")
        for run, answer in zip(runs, answers, strict=True):
            if answer.fits != run.fits:
                claimed, did = ("fits", "did not") if answer.fits else ("does not fit", "ran")
                print(f"{name} {run.name}: predicted that it {claimed}, and it {did}", file=sys.stderr)
            if answer.failure:
                failures += 1
                print(f"{name} {run.name}: {answer.failure}", file=sys.stderr)
            elif options.rows:
                for quantity, num_bytes in answer.predicted.items():
                    error = num_bytes / run.measured[quantity] - 1
                    print(
                        f"{name} {run.name}: {quantity} {num_bytes / 2**20:,.0f} MiB, {error:+.2%}, "
                        f"{answer.seconds:.0f} s",
                        file=sys.stderr,
                    )
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
