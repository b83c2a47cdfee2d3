"""Search space: the values that each knob may take, and the range of the batch size."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autofit.search.boundary import MAX_BATCH, MIN_BATCH
from autofit.search.sizes import sizes_for
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.pythons import Self

BATCH_SIZE = "batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Knob settings and batch sizes among which a search looks for the best.

    Attributes:
        choices: for each knob that is varied, its values in the order in which the user gave them.
        fixed: knob setting with the values of all other knobs.
        caps: largest batch to consider, for knob settings for which it is smaller than `max_batch`.
        left_out: knob settings that the workload cannot be run with.
        settings: all combinations of the choices except `left_out`. Their order follows the order of knobs in
            `Knobs`, not that in `choices`.

    Raises:
        ValueError: a knob or value does not exist, a knob has no values, or a value is given twice.
    """

    choices: Mapping[str, tuple[str | bool | int | None, ...]]
    fixed: Knobs = field(default_factory=Knobs)
    min_batch: int = MIN_BATCH
    max_batch: int = MAX_BATCH
    left_out: frozenset[Knobs] = frozenset()
    caps: Mapping[Knobs, int] = field(default_factory=dict)
    settings: tuple[Knobs, ...] = field(init=False)
    _by_values: Mapping[tuple[Any, ...], Knobs] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = [knob.name for knob in dataclasses.fields(Knobs)]
        for name, values in self.choices.items():
            if name not in known:
                raise ValueError(f"{name!r} is not a knob; the knobs are {', '.join(known)}")
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} needs values to choose from, each once; got {values}")
        if not 1 <= self.min_batch <= self.max_batch:
            raise ValueError(f"no batch size lies between {self.min_batch} and {self.max_batch}")
        ordered = {name: tuple(self.choices[name]) for name in known if name in self.choices}
        object.__setattr__(self, "choices", ordered)
        by_values: dict[tuple[Any, ...], Knobs] = {}
        for values in itertools.product(*ordered.values()):
            chosen: dict[str, Any] = dict(zip(ordered, values, strict=True))
            by_values[values] = dataclasses.replace(self.fixed, **chosen)
        object.__setattr__(self, "_by_values", by_values)
        kept = tuple(knobs for knobs in by_values.values() if knobs not in self.left_out)
        object.__setattr__(self, "settings", kept)

    def sizes(self, knobs: Knobs) -> Sequence[int]:
        """Batch sizes that a knob setting can be run with, ascending."""
        max_batch = min(self.max_batch, self.caps.get(knobs, self.max_batch))
        return sizes_for(knobs, min_batch=self.min_batch, max_batch=max_batch)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna distribution of each searched knob and of the batch size, by name."""
        knobs = {name: CategoricalDistribution(values) for name, values in self.choices.items()}
        return {**knobs, BATCH_SIZE: IntDistribution(self.min_batch, self.max_batch)}

    def to_knobs(self, params: Mapping[str, Any]) -> Knobs:
        """Knob setting from the parameters of an Optuna trial, whose values are among the choices.

        Raises:
            KeyError: a knob is missing, or its value is not among the choices.
        """
        return self._by_values[tuple(params[name] for name in self.choices)]

    def to_params(self, knobs: Knobs) -> dict[str, str | bool | None]:
        """Parameters of an Optuna trial by name, for a knob setting."""
        return {name: getattr(knobs, name) for name in self.choices}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Builds a space from the output of `to_dict`; ignores other keys of `data`.

        A knob that is missing, as an earlier version did not have it, gets its default.
        """
        knobs = {name: data[name] for name in KNOBS if name in data}
        searched = {name: tuple(value) for name, value in knobs.items() if isinstance(value, list)}
        return cls(
            choices=searched,
            fixed=Knobs(**{name: value for name, value in knobs.items() if name not in searched}),
            min_batch=data["min_batch"],
            max_batch=data["max_batch"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Space as a dictionary in JSON's types: a list for a searched knob, a value for a fixed one."""
        searched = {name: list(values) for name, values in self.choices.items()}
        return {
            **self.fixed.to_dict(),
            **searched,
            "min_batch": self.min_batch,
            "max_batch": self.max_batch,
        }
