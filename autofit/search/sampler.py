"""Chooses the configuration to try next: Optuna chooses the knobs, a search the batch size.

TPE alone wastes trials on the batch, whose effect on memory is nearly monotone and well predicted;
a boundary search needs a handful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.search.boundary import Boundary
from autofit.search.space import SearchSpace
from autofit_workers.spec.knobs import Knobs

_NUM_TRIES = 8


def no_curve(knobs: Knobs) -> None:
    """Returns None for every knob setting, as a search without predictions has no peak curves."""


class BoundarySampler:
    """Chooses the next trial of a search for the largest batch of every knob setting.

    Args:
        space: knob settings and batch sizes to search.
        inner: Optuna sampler that chooses the knob setting; random by default, since all settings are
            searched to their end anyway, and Optuna's TPE would read all trials for every choice.
        seed: random seed of the default sampler.
    """

    def __init__(
        self, space: SearchSpace, *, inner: BaseSampler | None = None, seed: int | None = None
    ) -> None:
        self._space = space
        self._distributions = space.distributions
        self._inner = RandomSampler(seed=seed) if inner is None else inner

    def choose(
        self,
        study: Study,
        boundaries: Mapping[Knobs, Boundary],
        open_settings: Sequence[Knobs],
        deciding_size: Callable[[Knobs], int | None],
    ) -> tuple[Knobs, int]:
        """Chooses the next trial's configuration: its knobs one at a time, then its batch size.

        Args:
            study: Optuna study for the inner sampler.
            boundaries: search for the largest batch of each setting; the chosen size is marked there as
                running.
            open_settings: settings that have a batch size to try, at least one.
            deciding_size: returns a batch size to try first, as its failure would end a setting's search;
                None for the usual order.
        """
        params: dict[str, Any] = {}
        for name in self._space.choices:
            distributions = {chosen: self._distributions[chosen] for chosen in params}
            trial = create_trial(state=TrialState.RUNNING, params=params, distributions=distributions)
            allowed = list(dict.fromkeys(getattr(knobs, name) for knobs in open_settings))
            params[name] = self._one_of(allowed, study, trial, name, self._distributions[name])
            open_settings = [knobs for knobs in open_settings if getattr(knobs, name) == params[name]]
        (knobs,) = open_settings
        size = deciding_size(knobs)
        if size is not None:
            boundaries[knobs].expect(size)
            return knobs, size
        proposal = boundaries[knobs].propose()
        assert proposal is not None
        return knobs, proposal

    def _one_of(
        self, allowed: list[Any], study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Value of a knob, drawn by Optuna's sampler from `allowed`.

        If several draws give no allowed value, it is the first of `allowed`.
        """
        if len(allowed) > 1:
            for _ in range(_NUM_TRIES):
                value = self._inner.sample_independent(study, trial, name, distribution)
                if value in allowed:
                    return value
        return allowed[0]
