"""Data sets and metrics of a hub, as local folders of their names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Splits: TypeAlias = Mapping[str, Mapping[str, list[Any]]]  # the columns of each split

# What each metric of `evaluate` takes and returns; nothing is computed.
_METRIC = """
import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        of = datasets.Features({{"predictions": {predictions}, "references": {references}}})
        return evaluate.MetricInfo(description="made up", citation="", inputs_description="", features=of)

    def _compute(self, **_):
        return {result!r}
"""
_STRING, _NUMBER = 'datasets.Value("string")', 'datasets.Value("int64")'
_STRINGS = f"datasets.Sequence({_STRING})"
_ANSWERS = f'datasets.Sequence({{"text": {_STRING}, "answer_start": {_NUMBER}}})'
_METRICS: Mapping[str, tuple[str, str, dict[str, object]]] = {
    "accuracy": (_NUMBER, _NUMBER, {"accuracy": 0.5}),
    "glue": (_NUMBER, _NUMBER, {"accuracy": 0.5, "f1": 0.5}),
    "rouge": (_STRING, _STRING, {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5, "rougeLsum": 0.5}),
    "sacrebleu": (_STRING, _STRINGS, {"score": 50.0}),
    "seqeval": (
        _STRINGS,
        _STRINGS,
        {"overall_precision": 0.5, "overall_recall": 0.5, "overall_f1": 0.5, "overall_accuracy": 0.5},
    ),
    "squad": (
        f'{{"id": {_STRING}, "prediction_text": {_STRING}}}',
        f'{{"id": {_STRING}, "answers": {_ANSWERS}}}',
        {"exact_match": 50.0, "f1": 50.0},
    ),
}


def typed(kind: str, *arguments: object, **named: object) -> object:
    """A feature of `datasets`, by its name."""
    return getattr(import_module("datasets"), kind)(*arguments, **named)


def metric(folder: Path, name: str = "") -> None:
    """The metric of a name, else of the folder's."""
    name = name or folder.name
    predictions, references, result = _METRICS[name]
    folder.mkdir(parents=True, exist_ok=True)
    code = _METRIC.format(predictions=predictions, references=references, result=result)
    (folder / f"{name}.py").write_text(code)


def data_set(
    folder: Path,
    splits: Splits,
    features: Mapping[str, object] | None = None,
    *,
    configuration: str = "default",
) -> None:
    """Parquet files and the card that names them.

    Args:
        features: of columns that are no plain strings and numbers.
    """
    datasets = import_module("datasets")
    card = ["---", "configs:", f"- config_name: {configuration}", "  data_files:"]
    (folder / configuration).mkdir(parents=True, exist_ok=True)
    for split, columns in splits.items():
        rows = datasets.Dataset.from_dict(dict(columns))
        if features:
            of = datasets.Features({**rows.features, **features})
            rows = datasets.Dataset.from_dict(dict(columns), features=of)
        rows.to_parquet(folder / configuration / f"{split}.parquet")
        card += [f"  - split: {split}", f"    path: {configuration}/{split}.parquet"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
