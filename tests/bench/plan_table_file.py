"""Writes a table of cuDNN's plans, which `autofit_workers.replay.plans.plan_table` reads."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.plan_table import (
    NOT_ASKED,
    SCHEMA,
    Copies,
    Kind,
    copies,
    features,
    reduced,
    split_key,
)
from autofit_workers.spec.work import Convolution


def encoded(version: str, rows: Iterable[tuple[Convolution, Sequence[Plan]]]) -> bytes:
    """A file for these calls and their plans; of calls that look the same to the table the first counts.

    JSON, compressed: the distinct `codes` of plans in columns, the distinct lists of `plans` as
    numbers of codes, `geometries` in columns (number of the shape, then the features but for the
    samples), and in `answers`, by pass, type and layout and by samples, the number of the list of
    plans of each geometry.
    """
    found: dict[tuple[str, int], dict[tuple[Any, ...], tuple[Copies, ...]]] = {}
    for call, plans in rows:
        question, shape = split_key(Kind.of(call).key)
        num_samples, *rest = features(call)
        of_batch = found.setdefault((question, num_samples), {})
        of_batch.setdefault((shape, *rest), copies(call, reduced(plans)))
    lists = Counter(plans for of_batch in found.values() for plans in of_batch.values())
    numbers = {plans: number for number, (plans, _) in enumerate(lists.most_common())}
    codes = {code: number for number, code in enumerate(dict.fromkeys(itertools.chain(*numbers)))}
    geometries = sorted({geometry for of_batch in found.values() for geometry in of_batch})
    shapes = sorted({shape for shape, *_ in geometries})
    answers: dict[str, dict[str, list[int]]] = {}
    for (question, num_samples), of_batch in sorted(found.items()):
        column = [numbers[of_batch[g]] if g in of_batch else NOT_ASKED for g in geometries]
        answers.setdefault(question, {})[str(num_samples)] = column
    document = {
        "schema": SCHEMA,
        "cudnn": version,
        "codes": list(zip(*codes, strict=True)),
        "plans": [[codes[code] for code in plans] for plans in numbers],
        "shapes": shapes,
        "geometries": list(zip(*((shapes.index(shape), *rest) for shape, *rest in geometries), strict=True)),
        "answers": answers,
    }
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
