"""Search space of a workload: the knob settings and batch sizes that a search considers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autofit.errors import AutofitError, InapplicableError, UsageError, WorkloadFailedError
from autofit.predict.failures import UNPREDICTABLE
from autofit.predict.predictor import Predictor
from autofit.predict.sizes.surfaces import USUAL_SIZES
from autofit.search.pace import Pace
from autofit.search.pruning import Pruning
from autofit.search.sizes import sizes_for
from autofit.settings.goals import Maximized, Objective
from autofit.settings.target import Target
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.values import ALL_CONV_ALGOS
from autofit.settings.words import in_words
from autofit.tuning.curves import CurveSet
from autofit.tuning.frontier import Cap
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import ConvPolicy
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE

if TYPE_CHECKING:
    from autofit.search.space import SearchSpace


def conv_algos(settings: TuneSettings, target: Target, *, of_script: bool = False) -> tuple[str, ...]:
    """Convolution algorithms to search: those that the user named, else the usual ones of the device.

    Args:
        of_script: whether the workload is a training script, for which one algorithm is the default.

    Raises:
        UsageError: a named algorithm does not apply to the device, or not to a compiled model.
    """
    kind = target.device.kind
    if settings.conv_algos is None:
        return conv.defaults(kind)[: 1 if of_script else None]
    compilable = [name for name in conv.applicable(kind) if isinstance(conv.find(name), ConvPolicy)]
    if settings.conv_algos == ALL_CONV_ALGOS:
        return tuple(compilable) if settings.may_compile else conv.applicable(kind)
    misplaced = [name for name in settings.conv_algos if kind not in conv.find(name).device_kinds]
    if misplaced:
        raise UsageError(
            f"--conv-algo {', '.join(misplaced)} does not apply to {kind}: "
            f"leave it out, or choose from {', '.join(conv.applicable(kind))}"
        )
    rewriting = [name for name in settings.conv_algos if not isinstance(conv.find(name), ConvPolicy)]
    if rewriting and settings.may_compile:
        raise UsageError(
            f"--conv-algo {', '.join(rewriting)} rewrites operators, but a compiled model has its own "
            f"kernels: leave --compile out, or choose from {', '.join(compilable)}"
        )
    return settings.conv_algos


def default_algo(settings: TuneSettings, target: Target) -> str | None:
    """Name of PyTorch's default convolution algorithm on the device; None if the user named algorithms."""
    is_named = settings.conv_algos not in (None, ALL_CONV_ALGOS)
    return None if is_named else conv.defaults(target.device.kind)[0]


def search_space(
    settings: TuneSettings, algos: tuple[str, ...], predictor: Predictor
) -> tuple[SearchSpace, tuple[str, ...]]:
    """Search space of a workload, and sentences on the knob settings that are left out of it.

    Args:
        algos: convolution algorithms to search.
        predictor: traces the workload, to see which knob settings run at all.

    Raises:
        UsageError: a convolution algorithm that the user named applies to no layer of the workload.
        WorkloadFailedError: the workload fails with every combination of the knobs.
    """
    from autofit.search.space import SearchSpace

    fixed, searched = settings.sized_knobs, dict(settings.searched)
    sizes = sizes_for(fixed, min_batch=1, max_batch=settings.max_batch)
    if settings.maximize is Maximized.SEQ_LEN:
        combinations, min_batch, failing = _first_looks(predictor, fixed, searched, settings.batch_size or 1)
    else:
        combinations = list(_combinations(fixed, searched))
        for knobs in combinations:
            predictor.traces.expect(knobs, sizes[:1])
        # The first size nearly always runs; on the CPU an algorithm has its own traces.
        predictor.expect_curves([dataclasses.replace(knobs, conv_algo=algos[0]) for knobs in combinations])
        min_batch, failing = _smallest_batch(predictor, combinations, sizes[:2])
    runs = next(knobs for knobs in combinations if knobs not in failing)
    if settings.conv_algos is None and predictor.traces.convolves is False:
        algos = algos[:1]  # other algorithms would change nothing
    reasons = {name: predictor.why_inapplicable(dataclasses.replace(runs, conv_algo=name)) for name in algos}
    inapplicable = {name: reason for name, reason in reasons.items() if reason is not None}
    if inapplicable and settings.conv_algos != ALL_CONV_ALGOS:
        raise UsageError(next(iter(inapplicable.values())))
    kept = tuple(name for name in algos if name not in inapplicable)
    space = SearchSpace(
        choices={"conv_algo": kept, **searched},
        fixed=dataclasses.replace(fixed, seq_len=runs.seq_len),
        min_batch=min_batch,
        max_batch=max(min_batch, sizes[-1]),
        left_out=frozenset(dataclasses.replace(knobs, conv_algo=name) for knobs in failing for name in kept),
    )
    notes = [f"left out: {reason.rpartition(':')[0]}" for reason in inapplicable.values()]
    for knobs, error in failing.items():
        name = " · ".join(in_words(knob, getattr(knobs, knob)) for knob in searched)
        notes.append(f"left out: {name}: {error.message}")
    return space, tuple(notes)


def _combinations(fixed: Knobs, searched: Mapping[str, tuple[str | bool, ...]]) -> Iterator[Knobs]:
    """Yields every combination of the searched knobs' values; the convolution algorithm is not varied."""
    for values in itertools.product(*searched.values()):
        changed: dict[str, Any] = dict(zip(searched, values, strict=True))
        yield dataclasses.replace(fixed, **changed)


def _first_looks(
    predictor: Predictor, fixed: Knobs, searched: Mapping[str, tuple[str | bool, ...]], batch_size: int
) -> tuple[list[Knobs], int, dict[Knobs, AutofitError]]:
    """Traces all knob settings at a usual sample size; if all fail, at the model's own sample size.

    Returns:
        Three values: the knob settings with the sample size that was traced, `batch_size`, and the error of
        each setting that fails.

    Raises:
        WorkloadFailedError: the workload fails with all of the settings.
    """
    usual = list(_combinations(dataclasses.replace(fixed, seq_len=USUAL_SIZES[0]), searched))
    for knobs in usual:
        predictor.expect_sizes(knobs, batch_size)
    try:
        return usual, *_smallest_batch(predictor, usual, [batch_size])
    except (WorkloadFailedError, InapplicableError):  # for example, a model that was made for one size
        own = list(_combinations(fixed, searched))
        return own, *_smallest_batch(predictor, own, [batch_size])


def _smallest_batch(
    predictor: Predictor, settings: Sequence[Knobs], sizes: Sequence[int]
) -> tuple[int, dict[Knobs, AutofitError]]:
    """First of `sizes` at which some knob setting runs, and the errors of those that fail.

    Raises:
        WorkloadFailedError: the workload fails with all of the settings.
    """
    for batch_size in sizes:
        failing = {
            knobs: error
            for knobs in settings
            if (error := _failure(predictor, knobs, batch_size)) is not None
        }
        if len(failing) < len(settings):
            return batch_size, failing
    raise failing[settings[0]]


def _failure(predictor: Predictor, knobs: Knobs, batch_size: int) -> AutofitError | None:
    try:
        predictor.trace(knobs, batch_size)
    except AutofitError as error:
        if error.kind in UNPREDICTABLE:
            return None  # an unpredictable step may still run
        if not isinstance(error, WorkloadFailedError | InapplicableError):
            raise
        return error
    return None


def as_the_workload_has_it(space: SearchSpace, predictor: Predictor) -> tuple[SearchSpace, tuple[str, ...]]:
    """Search space without convolution algorithms and batches that the workload cannot have; and why.

    A script that selects its own convolution algorithm is searched with this one alone. Batches are no larger
    than the data set.
    """
    own, num_samples = predictor.traces.own_conv_algo, predictor.traces.num_samples
    if own is not None:
        space = dataclasses.replace(space, choices={**space.choices, "conv_algo": (own,)})
    if predictor.traces.is_one_sample:
        note = "make_batch makes one batch whatever it is asked for, so no larger one was considered"
        return dataclasses.replace(space, max_batch=1), (note,)
    if num_samples is None or not space.min_batch <= num_samples < space.max_batch:
        return space, ()
    note = f"the data set has {num_samples} samples, so no larger batch was considered"
    return dataclasses.replace(space, max_batch=num_samples), (note,)


def capped(space: SearchSpace, curves: CurveSet) -> tuple[SearchSpace, dict[Knobs, Cap]]:
    """Search space without batch sizes that PyTorch's kernels refuse, however large the memory is.

    Returns:
        Two values: the space, and for each knob setting whose sizes were cut, the reason.

    Raises:
        WorkloadFailedError: no knob setting can run even the smallest size.
    """
    caps = dict(space.caps)
    reasons = {
        knobs: Cap(f"at batch {cap} the samples are the longest that fit", is_refused=False)
        for knobs, cap in caps.items()
    }
    for knobs, curve in curves.by_knobs.items():
        sizes = space.sizes(knobs)
        accepted = curve.accepted(sizes)
        if len(accepted) < len(sizes):
            caps[knobs] = accepted[-1] if accepted else space.min_batch - 1
            reasons[knobs] = Cap(str(curve.why_refused(sizes[len(accepted)])), is_refused=True)
    beyond = frozenset(knobs for knobs, cap in caps.items() if cap < space.min_batch)
    if beyond and not set(space.settings) - beyond:
        raise WorkloadFailedError(reasons[space.settings[0]].why)
    return dataclasses.replace(space, caps=caps, left_out=space.left_out | beyond), reasons


def pruning_of(
    settings: TuneSettings, target: Target, space: SearchSpace, curves: CurveSet
) -> Pruning | None:
    """Rule by which knob settings are dropped without a trial; None if all of them are tried.

    A setting is dropped if another one fits as large a batch and is known to be no slower. All are tried if
    nothing is measured, as predictions are fast; if only convolution algorithms are searched, whose speed is
    unknown; and if throughput is the objective, as only trials show it.
    """
    if not settings.searched or target.probe is None or settings.objective is Objective.THROUGHPUT:
        return None
    architecture = HOST_ARCHITECTURE if target.device.kind == "cpu" else target.card.architecture
    return Pruning(
        space.settings,
        paces={knobs: Pace.of(knobs, architecture) for knobs in space.settings},
        at_most=lambda knobs: curves.at_most(knobs, target.budget.usable_bytes, space.sizes(knobs)),
    )
