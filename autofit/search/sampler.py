"""The search as an Optuna sampler: Optuna chooses the knob setting, a boundary the batch size.

TPE alone wastes trials on the batch, whose effect on memory is nearly monotone and well predicted;
a boundary search needs a handful. As the sampler of any study it reads the state of every boundary
from the study's trials each time; `TuningStudy`, which keeps that state up, hands it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.search.boundary import Boundary
from autofit.search.curves import Curve
from autofit.search.space import BATCH_SIZE, SearchSpace
from workers.knobs import Knobs

MEMORY_CONSTRAINT = "memory"  # at most 0 for a trial that fits
PEAK_ATTRIBUTE = "peak_bytes"  # the measured peak that is held against the budget

_NUM_TRIES = 8


def no_curve(knobs: Knobs) -> None:
    """The predictions of a search that has none."""


def no_size(knobs: Knobs) -> None:
    """The sizes that decide more than their own setting, of a search where none does."""


class BoundarySampler(BaseSampler):
    """Searches the largest fitting batch of every knob setting of a space.

    A setting whose boundary is settled is not chosen again. Parameters that are not the space's
    (another name, or another distribution) are left to the inner sampler, so that this one can
    sample any study.

    Args:
        budget_bytes: what measured peaks are held against.
        curves: the prediction for a setting, or None where there is none. It is called for every
            proposal: hand out one `CachedCurve` per setting.
        inner: chooses among the settings that are open; random by default, since all of them are
            searched to their end, and TPE reads every trial for every choice.
        seed: of the default inner sampler.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        budget_bytes: int,
        curves: Callable[[Knobs], Curve | None] = no_curve,
        inner: BaseSampler | None = None,
        seed: int | None = None,
    ) -> None:
        self._space = space
        self._distributions = space.distributions
        self._budget_bytes = budget_bytes
        self._curves = curves
        self._inner = RandomSampler(seed=seed) if inner is None else inner

    def choose(
        self,
        study: Study,
        boundaries: Mapping[Knobs, Boundary],
        open_settings: Sequence[Knobs],
        deciding_size: Callable[[Knobs], int | None] = no_size,
    ) -> tuple[Knobs, int]:
        """The configuration of the next trial: its setting, one value after another, then its size.

        Args:
            study: for the inner sampler.
            boundaries: of every setting; the proposed size is in flight in its own from now on.
            open_settings: those with a size to propose, at least one.
            deciding_size: a size of a setting to be tried before its boundary proposes any.
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
        if size is None:
            return knobs, self._batch_size(boundaries[knobs])
        boundaries[knobs].expect(size)
        return knobs, size

    def boundaries(self, trials: Iterable[FrozenTrial]) -> dict[Knobs, Boundary]:
        """What the trials say of each setting's boundary, in the order of the settings.

        Trials that failed for another reason than memory say nothing: their size is proposed again.
        """
        boundaries = {
            knobs: Boundary(
                budget_bytes=self._budget_bytes,
                sizes=self._space.sizes(knobs),
                prior=self._curves(knobs),
            )
            for knobs in self._space.settings
        }
        for trial in trials:
            if any(trial.distributions.get(name) != own for name, own in self._distributions.items()):
                continue
            boundary = boundaries.get(self._space.to_knobs(trial.params))
            if boundary is None:  # of a setting that is left out now
                continue
            batch_size = trial.params[BATCH_SIZE]
            constraint = trial.constraints.get(MEMORY_CONSTRAINT)
            if trial.state == TrialState.RUNNING:
                boundary.expect(batch_size)
            elif trial.state == TrialState.COMPLETE and constraint is not None:
                peak_bytes = trial.user_attrs.get(PEAK_ATTRIBUTE)
                boundary.observe(batch_size, fits=constraint <= 0, peak_bytes=peak_bytes)
        return boundaries

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The inner sampler's, less the space's own parameters, which are sampled one after another."""
        inner = self._inner.infer_relative_search_space(study, trial)
        return {name: theirs for name, theirs in inner.items() if self._distributions.get(name) != theirs}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self._distributions.get(param_name) == param_distribution:
            boundaries = self.boundaries(study.get_trials(deepcopy=False))
            chosen = {name: trial.params[name] for name in self._space.choices if name in trial.params}
            open_params = [
                params
                for knobs, boundary in boundaries.items()
                if chosen.items() <= (params := self._space.to_params(knobs)).items()
                and boundary.has_proposal
            ]
            if param_name == BATCH_SIZE and len(chosen) == len(self._space.choices):
                return self._batch_size(boundaries[self._space.to_knobs(chosen)])
            if param_name != BATCH_SIZE and open_params:
                allowed = list(dict.fromkeys(params[param_name] for params in open_params))
                return self._one_of(allowed, study, trial, param_name, param_distribution)
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def _batch_size(self, boundary: Boundary) -> int:
        """The next size, or, when another process has just taken the last one, a known size again."""
        proposal = boundary.propose()
        known = boundary.largest_fitting or self._space.min_batch
        return known if proposal is None else proposal

    def _one_of(
        self, allowed: list[Any], study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """The inner sampler's choice; the first allowed value when it insists on a settled setting."""
        if len(allowed) > 1:
            for _ in range(_NUM_TRIES):
                value = self._inner.sample_independent(study, trial, name, distribution)
                if value in allowed:
                    return value
        return allowed[0]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()
