"""Decides whether pods fit on the GPUs that they ask for, from their configuration's locked peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from autofit.errors import BudgetError, UsageError
from autofit.hardware.budget import (
    DEFAULT_MARGIN,
    Budget,
    assumed_context,
    budget_of,
    least_total_bytes,
    make_budget,
)
from autofit.locks.configurations import options_of
from autofit.locks.lock_file import ANY_CARD, LockedConfiguration, LockedPeak
from autofit.settings.parallels import parallels_of
from autofit.units import format_bytes
from autofit.webhook.kept_locks import KeptLocks, UnknownConfigurationError
from autofit.webhook.pods import GpuAsked, PodAsked, TooLargeError, pods_of
from autofit.webhook.review import Review
from autofit_workers.spec.setup import Parallel

_MIB = 1024**2
# What NVIDIA's driver keeps of a card at most: nvidia-smi and the node's label count it, CUDA does not
# (data/gpus.toml).
_DRIVER_MIB = 750


class Judgement(Enum):
    """Whether an object's pods fit."""

    NOT_ASKED = "not-asked"
    FITS = "fits"
    UNSURE = "unsure"
    UNKNOWN = "unknown"
    DOES_NOT_FIT = "does-not-fit"


_WORST_LAST = tuple(Judgement)


@dataclass(frozen=True, slots=True)
class Judged:
    """Judgement of an object, with a sentence that says why, and one that says what to ask for."""

    judgement: Judgement
    reason: str = ""
    advice: str = ""


class UnclearError(Exception):
    """No lock tells whether a pod fits; the message says why, and what to do."""


def judge(review: Review, locks: KeptLocks) -> Judged:
    """Judgement of the object of a review: the worst of any pod on any of the GPUs that it may be given."""
    try:
        pods = pods_of(review.kind, review.manifest) if review.is_creation else ()
    except TooLargeError as error:
        return Judged(Judgement.UNKNOWN, str(error))
    if pods is None:
        return Judged(Judgement.NOT_ASKED)
    asked = [pod for pod in pods if pod.configuration is not None]
    on_gpus = [pod for pod in asked if pod.gpus]
    if not asked:
        return Judged(Judgement.NOT_ASKED)
    if not on_gpus:  # the annotation of a whole object holds for its pods with a GPU alone
        return Judged(
            Judgement.UNKNOWN,
            f"{asked[0].configuration}: no container asks for a GPU, as by nvidia.com/gpu: 1",
        )
    return max(
        (_of_pod(pod, locks) for pod in on_gpus), key=lambda judged: _WORST_LAST.index(judged.judgement)
    )


def _of_pod(pod: PodAsked, locks: KeptLocks) -> Judged:
    assert pod.configuration is not None
    try:
        configuration = locks.configuration(pod.configuration)
        judged = [each for gpu in pod.gpus for each in _on(configuration, gpu)]
    except (UnclearError, UnknownConfigurationError) as error:
        return Judged(Judgement.UNKNOWN, str(error))
    return max(judged, key=lambda each: _WORST_LAST.index(each.judgement))


def _on(configuration: LockedConfiguration, asked: GpuAsked) -> list[Judged]:
    """Judgements of a configuration on each GPU that a request allows.

    Raises:
        UnclearError: the request does not say which GPU it is, or the lock has no peak for it.
    """
    name = configuration.name
    if asked.is_shared:
        raise UnclearError(f"{name}: the GPU is shared with other pods, whose memory is not known")
    if asked.unknown:
        raise UnclearError(
            f"{name}: {asked.unknown[0]} is no card that autofit knows; `autofit gpus` lists them"
        )
    if not asked.is_named:
        raise UnclearError(
            f"{name}: the pod does not say which GPU it needs: set nodeSelector nvidia.com/gpu.product, "
            "or a node affinity for nvidia.com/gpu.memory"
        )
    mesh = _mesh(configuration.arguments)
    if not asked.cards:
        assert asked.memory_mib is not None
        return [_with_memory(configuration, asked.memory_mib, mesh)]
    return [_on_card(configuration, gpu.key, budget_of(gpu, mesh=mesh), mesh) for gpu in asked.cards]


def _on_card(configuration: LockedConfiguration, card: str, budget: Budget, mesh: Sequence[int]) -> Judged:
    peaks = [peak for peak in configuration.peaks if peak.gpu in (card, ANY_CARD)]
    if not peaks:
        raise UnclearError(
            f"{configuration.name}: its lock has no peak on {card}: add {card} to the cards of its --gpu, "
            "and run `autofit lock`"
        )
    return _compared(configuration.name, peaks, card, budget, mesh)


def _with_memory(configuration: LockedConfiguration, memory_mib: int, mesh: Sequence[int]) -> Judged:
    """Judgement on a card of which only the memory is known, by the largest peak on any card."""
    where = f"a GPU of {memory_mib} MiB"
    if not configuration.peaks:
        raise UnclearError(
            f"{configuration.name}: its lock has no peak: run `autofit lock {configuration.name}`"
        )
    try:
        budget = make_budget(max(0, memory_mib - _DRIVER_MIB) * _MIB, mesh=mesh)
    except BudgetError:
        return Judged(
            Judgement.DOES_NOT_FIT, f"{configuration.name} does not fit on {where}: nothing is left for it"
        )
    return _compared(configuration.name, configuration.peaks, where, budget, mesh)


def _compared(
    name: str, peaks: Sequence[LockedPeak], where: str, budget: Budget, mesh: Sequence[int]
) -> Judged:
    """Judgement by the largest of several peaks: which release of PyTorch will run is not known."""
    peak = max(peaks, key=lambda each: each.high_bytes)
    if peak.high_bytes <= budget.usable_bytes:
        return Judged(Judgement.FITS)
    size = format_bytes(peak.high_bytes)
    least_mib = _least_memory_mib(peak.high_bytes, mesh)
    advice = f"Ask for a node with nvidia.com/gpu.memory above {least_mib - 1} (MiB), or run `autofit cards`"
    usable = format_bytes(budget.usable_bytes)
    if max(each.likely_bytes for each in peaks) > budget.most_usable_bytes:
        needed = format_bytes(max(each.likely_bytes for each in peaks))
        reason = f"{name} does not fit on {where}: it likely needs {needed}, and {usable} are usable"
        return Judged(Judgement.DOES_NOT_FIT, reason, advice)
    reason = f"{name} may not fit on {where}: it needs up to {size}, and {usable} are usable"
    return Judged(Judgement.UNSURE, reason, advice)


def _least_memory_mib(needed_bytes: int, mesh: Sequence[int]) -> int:
    """Memory by nvidia-smi of the smallest card that has so much left for PyTorch, in MiB."""
    context, _ = assumed_context(None, mesh=mesh)
    total_bytes = least_total_bytes(needed_bytes + context.high_bytes, DEFAULT_MARGIN)
    return -(-total_bytes // _MIB) + _DRIVER_MIB


def _mesh(arguments: Sequence[str]) -> tuple[int, ...]:
    """Number of ranks along each dimension of parallelism, from a configuration's options.

    Raises:
        UnclearError: the options name no single parallelism.
    """
    try:
        options = options_of(arguments)
        form, ranks = options.get("parallel"), options.get("nproc")
        num_ranks = None if ranks is None else int(ranks)
        found = (Parallel.of_script(num_ranks or 1),) if form is None else parallels_of([form], num_ranks)
    except (UsageError, ValueError) as error:
        raise UnclearError(f"the lock's number of ranks is not understood: {error}") from error
    if len(found) != 1:
        raise UnclearError(f"the lock's --parallel {form} stands for several: lock one of them")
    return found[0].mesh
