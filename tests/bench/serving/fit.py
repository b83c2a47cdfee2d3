"""Fits what servers take beside their kernels on NVIDIA's wheel: `python tests/bench/serving/fit.py`.

Prints serving.toml's constants and the shares of `loads.TOGETHER`, and how near they come to the rows that
they are fitted on and to all others (`serving_rows.py` scores what the product makes of them). Fitted on an
H100's and a B200's rows of up to 256 requests that memory has room for, without two models; the time of a
token without DeepSeek's rows of TensorRT-LLM, as a part of them guess several tokens at once and the table
does not say which. Least squares of log(predicted / measured), softened for rows that are far off, each
constant pulled to where it begins. Wants numpy and scipy, and transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.serving import EngineConstants, Parts, ServingCosts  # noqa: E402
from tests.bench.serving.loads import ENGINES, LoadRow, Loads, costs  # noqa: E402
from tests.bench.time import wheel  # noqa: E402

_EXCHANGE = 5e-6  # seconds of an all-reduce of few bytes: 4.5 to 7.5 µs in the wheel's custom_allreduce_perf
_MOST_REQUESTS = 256
_SOFT, _SOFT_FIRST = 0.1, 0.15
_PULL, _PULL_FIRST = 0.08, 0.1
_GENERATIONS = ("hopper", "blackwell")
_LOADS = tuple((engine, of_nvidia) for engine in ENGINES for of_nvidia in (False, True))
_COMMON = ("layer", "quantized", "traffic")
_OF_GENERATION = ("experts", "sorted", "unpacked")
_OF_ENGINE = ("step", "sequence", "late", "slower", "held")
_FIRST = ("prompt", "prompt_slower", "waited")
_LINEAR = ("layer", "quantized", "traffic", "experts", "sorted", "step", "sequence", "late")
# Where each constant begins, how far from there costs as much as one far row, and its least value.
_BEGIN = {
    "layer": (1.5e-5, 6e-6, 0.0), "quantized": (2e-6, 1.5e-6, 0.0), "traffic": (14.0, 6.0, 0.0),
    "experts": (2.5e-5, 8e-6, 0.0), "sorted": (4.0, 2.0, 1.0), "unpacked": (1.5, 0.5, 1.0),
    "step": (5e-4, 4e-4, 0.0), "sequence": (2e-6, 3e-6, 0.0), "late": (2e-6, 3e-6, 0.0),
    "slower": (1.0, 0.05, 0.85), "held": (1.0, 0.3, 0.3), "prompt": (0.03, 0.03, 0.0),
    "prompt_slower": (1.1, 0.2, 0.8), "waited": (2.0, 1.0, 0.0), "together": (0.15, 0.15, 0.0),
}  # fmt: skip
Key = tuple[str, Any]
Values = Mapping[Key, float]

_NOTHING = EngineConstants(
    **dict.fromkeys((*_LINEAR, "prompt", "waited", "held"), 0.0),
    exchange=_EXCHANGE,
    unpacked=1.0,
    slower=1.0,
    prompt_slower=1.0,
)


class Rows:
    """Rows as columns of numbers: seconds of their passes, as sums that are linear in the constants."""

    def __init__(self, rows: Sequence[LoadRow]) -> None:
        self.rows = list(rows)
        self.token = np.array([row.token_seconds for row in rows])
        self.first = np.array([row.first_seconds for row in rows])
        self.engines = np.array([row.engine for row in rows])
        self.generations = np.array([costs(row.system).speeds.generation for row in rows])
        self.answers = np.array([row.load.answer for row in rows], float)
        batches = [_batch(row) for row in rows]
        self.batches = np.array(batches, float)
        several = [
            max(1, min(each, row.load.most_tokens // row.load.prompt))
            for row, each in zip(rows, batches, strict=True)
        ]
        self.several = np.array(several, float)
        contexts = [row.load.prompt + row.load.answer / 2 for row in rows]
        self.passes = {
            "token": self._terms(lambda at, costs: costs.token_parts(batches[at], contexts[at])),
            "alone": self._terms(lambda at, costs: costs.prompt_parts(rows[at].load.prompt)),
            "several": self._terms(lambda at, costs: costs.prompt_parts(rows[at].load.prompt, several[at])),
        }

    def _terms(self, parts: Callable[[int, ServingCosts], Parts]) -> dict[str, Any]:
        """Seconds of each row's pass without constants, and what one of each constant adds."""
        engines = {"": _NOTHING, "unpacked": dataclasses.replace(_NOTHING, unpacked=2.0)}
        engines |= {name: dataclasses.replace(_NOTHING, **{name: 1.0}) for name in _LINEAR}
        found = {
            name: np.array(
                [
                    parts(at, ServingCosts(costs(row.system), row.decoder, engine)).seconds
                    for at, row in enumerate(self.rows)
                ]
            )
            for name, engine in engines.items()
        }
        return {name: each - found[""] if name else each for name, each in found.items()}

    def of(self, values: Values, name: str) -> Any:
        """A constant of each row, by its card and engine."""
        if name in _COMMON:
            return values[name, ""]
        if name in _OF_GENERATION:
            return np.where(self.generations == "hopper", values[name, "hopper"], values[name, "blackwell"])
        if name == "together":
            kept = [(row.engine, row.of_nvidia) for row in self.rows]
            return np.array([values[name, each] for each in kept])
        return np.select([self.engines == each for each in ENGINES], [values[name, each] for each in ENGINES])

    def pass_seconds(self, values: Values, kind: str) -> Any:
        """`Parts.seconds` of each row."""
        terms = self.passes[kind]
        added = sum(self.of(values, name) * terms[name] for name in _LINEAR)
        return terms[""] + added + (self.of(values, "unpacked") - 1) * terms["unpacked"]

    def each(self, values: Values) -> Any:
        return self.pass_seconds(values, "several") / self.several

    def token_pass(self, values: Values) -> Any:
        return self.of(values, "slower") * self.pass_seconds(values, "token")

    def token_seconds(self, values: Values) -> Any:
        """`serving.served`'s time of a token."""
        others = self.of(values, "held") * (self.batches - 1) * self.each(values) / self.answers
        return self.token_pass(values) + others

    def first_seconds(self, values: Values) -> Any:
        """`serving.served`'s time to the first token, where memory has room for all requests."""
        slower, together = self.of(values, "prompt_slower"), self.of(values, "together")
        alone = slower * self.pass_seconds(values, "alone")
        waited = self.of(values, "waited") * self.token_pass(values) * (self.batches > 1)
        at_once = alone + np.minimum(alone, slower * self.each(values)) * (self.batches - 1) / 2
        return self.of(values, "prompt") + (1 - together) * (alone + waited) + together * at_once


def _batch(row: LoadRow) -> int:
    batch = math.ceil(row.load.requests / row.decoder.num_groups)
    return min(batch, row.load.room or batch)


def fitted(
    seconds: Callable[[Values], Any],
    measured: Any,
    keys: Sequence[Key],
    known: Values,
    how: tuple[float, float],
) -> dict[Key, float]:
    """The constants that suit rows best.

    Args:
        seconds: predicted seconds of the rows.
        measured: those that were measured.
        keys: the constants.
        known: constants that stay.
        how: from which error on rows count less, and how much constants are pulled.
    """
    soft, pull = how
    begin, far, least = np.array([_BEGIN[name] for name, _ in keys]).T

    def values(point: Any) -> dict[Key, float]:
        return {**known, **dict(zip(keys, map(float, begin + point * far), strict=True))}

    def residuals(point: Any) -> Any:
        error = np.log(seconds(values(point)) / measured)
        softened = np.sign(error) * soft * np.sqrt(2 * (np.sqrt(1 + (error / soft) ** 2) - 1))
        return np.concatenate([softened, pull * point])

    lowest = (least - begin) / far
    found = optimize.least_squares(residuals, np.zeros(len(keys)), bounds=(lowest, np.full(len(keys), 8.0)))
    return values(found.x)


def _printed(values: Values) -> None:
    def lines(names: Sequence[str], which: Any) -> None:
        for name in names:
            print(f"{name} = {values[name, which]:.3g}")

    print("[passes]")
    lines(_COMMON, "")
    print(f"exchange = {_EXCHANGE}")
    for generation in _GENERATIONS:
        print(f"\n[generations.{generation}]")
        lines(_OF_GENERATION, generation)
    for engine in ENGINES:
        print(f"\n[engines.{engine}]")
        lines((*_OF_ENGINE, *_FIRST), engine)
    print("\ntogether:", {each: float(f"{values['together', each]:.2g}") for each in _LOADS})


def _said(name: str, ratio: Any) -> None:
    off = np.abs(ratio - 1)
    print(
        f"{name}: {len(off)} rows {np.median(off):.1%}, {np.quantile(off, 0.9):.1%}, bias "
        f"{np.median(ratio) - 1:+.1%}"
    )


def main() -> None:
    """Prints the constants and their errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="folder of the unpacked wheel; default: it is downloaded")
    given = parser.parse_args()
    every = Loads(wheel.unpacked(given.wheel)).rows
    usual = [row for row in every if row.is_fitted and row.load.requests <= _MOST_REQUESTS]
    of_tokens = Rows([row for row in usual if not row.may_guess])
    keys: list[Key] = [(name, "") for name in _COMMON]
    keys += [(name, each) for each in _GENERATIONS for name in _OF_GENERATION]
    keys += [(name, each) for each in ENGINES for name in _OF_ENGINE]
    values = fitted(of_tokens.token_seconds, of_tokens.token, keys, {}, (_SOFT, _PULL))
    of_first = Rows([row for row in usual if row.has_room and not row.may_guess])
    keys = [(name, each) for each in ENGINES for name in _FIRST] + [("together", each) for each in _LOADS]
    values = fitted(of_first.first_seconds, of_first.first, keys, values, (_SOFT_FIRST, _PULL_FIRST))
    _printed(values)
    others = Rows([row for row in every if not row.is_fitted])
    for name, rows in (("fitted", of_tokens), ("never fitted", others)):
        _said(f"time of a token, {name}", rows.token_seconds(values) / rows.token)
    rows = Rows([row for row in others.rows if row.has_room])
    for name, part in (("fitted", of_first), ("never fitted", rows)):
        _said(f"time to the first token, {name}", part.first_seconds(values) / part.first)


if __name__ == "__main__":
    main()
