"""The bench's answer as Markdown tables, JSON and CSV."""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.predictions import ABLATION
from tests.bench.scoring import Scored, Summary, quantile, summarize, summarize_other, with_constants

MIB = 1024**2
_NUM_WORST = 15
# Columns of what may have run instead of a row's setting.
OR_ELSE = ("else_low_bytes", "else_likely_bytes", "else_high_bytes")
_HEADER = (
    "| | n | failed | median | p90 | max | bias | above constant: median | p90 | unsafe | at likely "
    "| given away | labels | OOM labels | s |\n" + "|---" * 15 + "|"
)


def summaries(scored: Sequence[Scored]) -> list[Summary]:
    """All rows, every wider class, every family, and what the other predictors said of the same rows."""
    table = scored[0].row.table
    classes: defaultdict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        for group in s.row.groups:
            classes[f"**{group}**"].append(s)
    families: defaultdict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        families[s.row.family].append(s)
    found = [summarize(f"**{table}**", scored)]
    for name, members in [*sorted(classes.items()), *sorted(families.items())]:
        found.append(summarize(name, members))
        if name.startswith("**"):
            others = dict.fromkeys(other for s in members for other in s.row.others)
            found += [summarize_other(f"{name} {other}", other, members) for other in others]
    return found


def _constants(scored: Sequence[Scored]) -> Iterator[str]:
    """The constants of networks that use the same of cuDNN."""
    for cudnn in sorted({s.prediction.cudnn for s in scored if s.has_error}):
        sizes = [s.constant_bytes / MIB for s in scored if s.has_error and s.prediction.cudnn == cudnn]
        least_and_most = dict.fromkeys(f"{size:.0f}" for size in (min(sizes), max(sizes)))
        yield f"{' to '.join(least_and_most)} MiB with cuDNN for {' and '.join(cudnn) or 'nothing'}"


def markdown(scored: Sequence[Scored]) -> Iterator[str]:
    """One table's section."""
    table = scored[0].row.table
    yield f"## {table}\n"
    if any(s.constant_bytes for s in scored):
        yield f"Constant, fitted leaving each family out: {'; '.join(_constants(scored))}.\n"
    yield _HEADER
    yield from (_line(summary) for summary in summaries(scored))
    yield from _models_above(scored, 0.06)
    yield from _worst(scored)
    yield from _failures(scored)


def _line(s: Summary) -> str:
    figures = [s.median, s.ninth_decile, s.largest]
    shares = [s.unsafe, s.unsafe_at_likely, s.given_away, s.labels_right, s.oom_labels_right]
    cells = [
        s.name,
        str(s.num_rows),
        str(s.num_failed),
        *(_percent(value) for value in figures),
        _percent(s.bias, signed=True),
        _percent(s.above_median),
        _percent(s.above_ninth_decile),
        *(_percent(value) for value in shares),
        "" if s.seconds is None else f"{s.seconds:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _models_above(scored: Sequence[Scored], limit: float) -> Iterator[str]:
    models: defaultdict[str, list[float]] = defaultdict(list)
    for s in scored:
        if s.has_error:
            models[s.row.model].append(s.error)
    medians = {model: statistics.median(map(abs, errors)) for model, errors in models.items()}
    above = sorted((m for m in medians if medians[m] > limit), key=lambda m: -medians[m])
    if above:
        yield f"\nModels whose median is above {_percent(limit)}: {len(above)} of {len(models)}"
        yield from (
            f"- {model}: {_percent(medians[model])} of {len(models[model])}, bias "
            f"{_percent(statistics.fmean(models[model]), signed=True)}"
            for model in above[: 2 * _NUM_WORST]
        )


def _worst(scored: Sequence[Scored]) -> Iterator[str]:
    compared = sorted((s for s in scored if s.has_error), key=lambda s: -abs(s.error))
    if compared:
        yield "\nWorst rows (MiB):"
        for s in compared[:_NUM_WORST]:
            assert s.row.measured_bytes is not None
            said_bytes = s.as_measured(s.prediction.likely_bytes)
            yield (
                f"- {s.row.name}: real {s.row.measured_bytes / MIB:.0f}, predicted "
                f"{said_bytes / MIB:.0f} ({_percent(s.error, signed=True)})"
            )
    wrong = [s for s in scored if s.row.ran is not None and not s.failed and not s.is_labelled_right]
    if wrong:
        yield f"\nWrong labels: {len(wrong)}"
        yield from (f"- {_wrong_label(s)}" for s in wrong[: 2 * _NUM_WORST])


def _wrong_label(s: Scored) -> str:
    real = "ran" if s.row.ran else "did not run"
    said = "runs" if s.prediction.runs["likely"] else "does not run"
    text = f"{s.row.name}: {real}, predicted that it {said} ({s.prediction.likely_bytes / MIB:.0f} MiB)"
    if s.prediction.next_runs.get("likely"):
        text += f"; {s.row.failed_batch_size} did not run, predicted that it does"
    return text


def _failures(scored: Sequence[Scored]) -> Iterator[str]:
    reasons: defaultdict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        if s.failed:
            reasons[s.row.model].append(s)
    if reasons:
        yield f"\nFailed: {len(reasons)} models"
        yield from (
            f"- {model} ({len(rows)} rows): {str(rows[0].prediction.failure)[:300]}"
            for model, rows in sorted(reasons.items())
        )


def ablation(scored: Sequence[Scored]) -> Iterator[str]:
    """The error after each step; where a table has constants, each step has its own."""
    yield f"\n### {scored[0].row.table}: what each part of the model buys\n"
    yield "| | n | median | p90 | bias |\n|---|---|---|---|---|"
    for name, _ in ABLATION:
        step = ablated(scored, name)
        errors = [s.error for s in step if s.has_error]
        if errors:
            sizes = [abs(error) for error in errors]
            yield (
                f"| {name} | {len(errors)} | {_percent(statistics.median(sizes))} "
                f"| {_percent(quantile(sizes, 0.9))} | {_percent(statistics.fmean(errors), signed=True)} |"
            )


def ablated(scored: Sequence[Scored], name: str) -> list[Scored]:
    """The rows as if the prediction had stopped after a step."""
    step = [
        dataclasses.replace(
            s,
            constant_bytes=0,
            prediction=dataclasses.replace(
                s.prediction, likely_bytes=s.prediction.ablation_bytes.get(name, 0)
            ),
        )
        for s in scored
    ]
    return with_constants(step) if any(s.constant_bytes for s in scored) else step


def as_json(scored: Sequence[Scored]) -> dict[str, Any]:
    """The summaries of one table, and its failures."""
    return {
        "table": scored[0].row.table,
        "constant_bytes": sorted({s.constant_bytes for s in scored}),
        "summaries": [dataclasses.asdict(summary) for summary in summaries(scored)],
        "failures": {s.row.name: s.prediction.failure for s in scored if s.failed},
    }


def write_rows(path: Path, scored: Sequence[Scored]) -> None:
    """One line for every row, for whoever wants to know why."""
    lines = [_csv_line(s) for s in scored]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
        writer.writeheader()
        writer.writerows(lines)


def _csv_line(s: Scored) -> dict[str, object]:
    row, said = s.row, s.prediction
    setting = row.setting
    return {
        "table": row.table,
        "model": row.model,
        "family": row.family,
        "groups": "; ".join(row.groups),
        "mode": setting.mode,
        "optimizer": setting.optimizer,
        "precision": setting.precision,
        "memory_format": setting.memory_format,
        "step": setting.step,
        "release": setting.release,
        "gpu": row.gpu,
        "architecture": row.architecture,
        "torch_release": row.torch_release,
        "batch_size": row.batch_size,
        "failed_batch_size": row.failed_batch_size,
        "safe_batch_size": said.safe_batch_size,
        "measured_bytes": row.measured_bytes,
        "ran": row.ran,
        "limit_bytes": row.limit_bytes,
        "constant_bytes": s.constant_bytes,
        "before_bytes": said.before_bytes,
        "real_bytes": s.real_bytes if s.has_error else None,
        "low_bytes": said.low_bytes,
        "likely_bytes": said.likely_bytes,
        "high_bytes": said.high_bytes,
        **dict(zip(OR_ELSE, said.or_else or ("", "", ""), strict=True)),
        "safe_bytes": said.safe_bytes,
        "worst_bytes": said.worst_bytes,
        "allocated_bytes": said.allocated_bytes,
        "workspace_low_bytes": said.workspace_low_bytes,
        "workspace_likely_bytes": said.workspace_likely_bytes,
        "workspace_high_bytes": said.workspace_high_bytes,
        "model_class": said.model_class,
        "cudnn": " and ".join(said.cudnn),
        "error": s.error if s.has_error else None,
        "error_above_constant": s.error_above_constant if s.has_error else None,
        "runs_likely": said.runs.get("likely"),
        "next_runs_likely": said.next_runs.get("likely"),
        "seconds": round(said.seconds, 3),
        "failure": said.failure,
        **said.ablation_bytes,
        **row.others,
    }
