"""Target of a search: the card or the host, its budget, and how trials are measured there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autofit.dispatch.base import Devices
from autofit.errors import DispatchError, DriverError, UnknownGpuError, UsageError
from autofit.hardware.budget import DEFAULT_ARCHITECTURE, Budget, budget_among, make_budget
from autofit.hardware.card import Card
from autofit.hardware.gpus import Gpu, LocalGpu, catalogue_architectures, find_gpu
from autofit.settings.tune_settings import TuneSettings
from autofit.units import format_bytes
from autofit_workers.process.operating_system import missing_for_cpu_trials
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.protocol import Device, Probe
from autofit_workers.spec.trace import Trace

_SAME_CARD = 0.98  # ratio; NVML, CUDA and a card's nominal size differ by up to 2 % in total memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Device that a search is for, the memory that may be used on it, and how configurations are run on it.

    Attributes:
        device: the device, by kind and name.
        budget: memory that may be used, and what is kept free.
        card: GPU that predictions assume. For the CPU, a GPU of the default architecture stands in, as memory
            grows with the batch in the same way.
        probe: how configurations are run, on `cuda` or `cpu`; None if they are only predicted.
        is_own_budget: whether every GPU on which configurations can run is of the named model. Otherwise a
            larger GPU is used, with a limit on its memory.
    """

    device: Device
    budget: Budget
    card: Card
    probe: Probe | None
    is_own_budget: bool = False


def among_ranks_of_script(target: Target, trace: Trace) -> Target:
    """Target (device and usable memory) of a script's rank, less what NCCL takes for its process groups.

    Which process groups there are is known only from a traced step. Without any, and on the CPU, `target` is
    returned unchanged.

    Args:
        target: target that was resolved before the script was traced.
        trace: recorded step of the rank.

    Raises:
        BudgetError: NCCL's buffers leave no memory.
    """
    if not trace.shares_as_script or target.device.kind == "cpu":
        return target
    card = target.card
    budget = budget_among(
        target.budget,
        trace.groups,
        trace.num_ranks,
        architecture=None if card.may_be else card.architecture,
        card=None if card.may_be else card.name,
    )
    return replace(target, budget=budget, card=replace(card, context_bytes=budget.context_bytes))


def resolve_target(
    settings: TuneSettings,
    *,
    local_gpus: Callable[[], tuple[LocalGpu, ...]],
    reachable: Callable[[], Devices],
) -> Target:
    """Target of a search: the device, its usable memory, and whether batches are run on it or predicted.

    Args:
        settings: the settings of the search.
        local_gpus: returns the GPUs of this machine; not called where a named card is only predicted.
        reachable: returns the GPUs on which batches could be run, here or in a cluster; called only if they
            may be run at all.

    Raises:
        UsageError: no card is named, and this machine has none; or it cannot measure on the CPU.
        BudgetError: nothing is left of the device's memory.
        DispatchError: a measurement on this machine is requested, which has no suitable GPU; for a cluster
            the dispatcher raises it.
        DriverError: the NVIDIA driver does not answer.
    """
    if settings.device == "cpu":
        return _cpu(settings)
    is_named = settings.gpu is not None or settings.gpu_mem_bytes is not None
    # A prediction for a named card needs no local GPU, so a driver that does not answer is no error.
    local = () if is_named and settings.probe == "predict" else _local(local_gpus, settings, is_named)
    driver = architecture = None
    if settings.gpu is not None:
        name, architecture, total_bytes = (
            settings.gpu.key,
            settings.gpu.architecture,
            settings.gpu.total_bytes,
        )
    elif settings.gpu_mem_bytes is not None:
        name, total_bytes = f"{format_bytes(settings.gpu_mem_bytes)} card", settings.gpu_mem_bytes
    elif local:
        name, architecture, total_bytes = local[0].name, local[0].architecture, local[0].total_bytes
        driver = local[0].driver_version
    else:
        raise UsageError(
            "there is no GPU here to take the memory from: say which you have with --gpu-mem 16G or "
            "--gpu rtx-3090 (`autofit gpus` lists them)"
        )
    budget = make_budget(
        total_bytes,
        architecture=architecture,
        card=None if architecture is None else name,
        margin=settings.margin,
        reserve_bytes=settings.reserve_bytes,
        mesh=settings.mesh,
    )
    probe = _cuda_probe(
        settings,
        # A local card with less memory than the named card cannot measure for it.
        has_local_gpu=any(gpu.total_bytes >= _SAME_CARD * total_bytes for gpu in local),
        reachable=reachable,
    )
    return Target(
        device=Device(kind=GPU_KIND, name=name, driver=driver),
        budget=budget,
        card=Card(
            name=name,
            architecture=architecture or DEFAULT_ARCHITECTURE,
            context_bytes=budget.context_bytes,
            may_be=() if architecture is not None else catalogue_architectures(),
            memory_bytes=total_bytes - budget.other_bytes,
        ),
        probe=probe,
        is_own_budget=probe is Probe.CUDA
        and (
            _is_every_card(reachable().names, settings.gpu, reachable().num_gpus)
            if settings.address is not None
            else all(_is_meant(gpu, settings.gpu, total_bytes) for gpu in local)
        ),
    )


def gpu_label(settings: TuneSettings, device: Device) -> str:
    """Short name of the device that a search is for, such as `t4`, `16g` or `cpu`, for metrics and job names.

    It is the card's key in the catalogue, or the memory if only that is given. For a local GPU that is not in
    the catalogue, it is the GPU's own name in the style of a key.
    """
    if device.kind == "cpu":
        return "cpu"
    if settings.gpu is not None:
        return settings.gpu.key
    if settings.gpu_mem_bytes is not None:
        return f"{settings.gpu_mem_bytes / 2**30:.4g}g"
    try:
        return find_gpu(device.name).key
    except UnknownGpuError:
        return re.sub(r"[^a-z0-9.]+", "-", device.name.casefold()).strip("-")


def _is_meant(local: LocalGpu, named: Gpu | None, total_bytes: int) -> bool:
    """Whether a GPU of this machine is the card that the search is for.

    Args:
        local: GPU of this machine.
        named: card that the user named; None if only its memory is known.
        total_bytes: memory of the card, from which that of `local` may differ by 2 %.
    """
    is_same_size = _SAME_CARD * total_bytes <= local.total_bytes <= total_bytes / _SAME_CARD
    return is_same_size and (named is None or _is_named(local.name, named))


def _is_every_card(names: tuple[str, ...], named: Gpu | None, num_gpus: int) -> bool:
    """Whether all GPUs of a cluster are of the named model.

    Args:
        names: names of the cluster's GPUs, of those that report one.
        named: card that the user named; None (the result is then False) if none was named.
        num_gpus: number of the cluster's GPUs; with more GPUs than names, the result is False.
    """
    return named is not None and len(names) == num_gpus and all(_is_named(name, named) for name in names)


def _is_named(name: str, named: Gpu) -> bool:
    try:
        return find_gpu(name) == named
    except UnknownGpuError:
        return False


def _local(
    local_gpus: Callable[[], tuple[LocalGpu, ...]], settings: TuneSettings, is_named: bool
) -> tuple[LocalGpu, ...]:
    """GPUs of this machine, as the NVIDIA driver lists them.

    Args:
        is_named: whether the settings name a card or its memory, so none of this machine is needed.

    Returns:
        The GPUs; empty if the driver does not answer and a prediction for the named card will do.

    Raises:
        DriverError: the driver does not answer, and the GPUs are needed.
    """
    try:
        return local_gpus()
    except DriverError:
        if is_named and settings.probe == "auto" and settings.device == "auto":
            return ()
        raise


def _cpu(settings: TuneSettings) -> Target:
    assert settings.gpu_mem_bytes is not None
    if settings.address is None and (missing := missing_for_cpu_trials()):
        raise UsageError(
            f"this machine cannot measure on the CPU, as {' and '.join(missing)}: predict for a card (--gpu, "
            "--gpu-mem), or name a Ray cluster of Linux machines with --address"
        )
    budget = make_budget(
        settings.gpu_mem_bytes, margin=settings.margin, reserve_bytes=settings.reserve_bytes, kind="cpu"
    )
    return Target(
        device=Device(kind="cpu", name="cpu"),
        budget=budget,
        card=Card(name="cpu", architecture=DEFAULT_ARCHITECTURE, context_bytes=0),
        probe=Probe.CPU,
    )


def _cuda_probe(
    settings: TuneSettings, *, has_local_gpu: bool, reachable: Callable[[], Devices]
) -> Probe | None:
    """Probe `cuda` if trials are to run on cards, else None; raises `DispatchError` if cards are missing."""
    is_wanted = settings.probe == "measure" or settings.device == GPU_KIND
    num_ranks = settings.setup.num_ranks
    if settings.probe == "predict" or settings.setup.torch is not None:
        return None  # measured trials run the installed PyTorch, not the one of --torch
    if num_ranks > 1 and not is_wanted:  # several cards are only used if the user asks for a measurement
        return None
    asks_elsewhere = settings.address is not None
    num_gpus = reachable().num_gpus if has_local_gpu or asks_elsewhere else 0
    if num_gpus >= num_ranks:
        return Probe.CUDA
    if not is_wanted:
        return None
    if asks_elsewhere:
        return Probe.CUDA  # a node with GPUs may still join the cluster; the dispatcher waits for it
    if num_gpus:
        raise DispatchError(
            f"this machine has {num_gpus} GPU{'s'[: num_gpus != 1]} to measure on, and each of the "
            f"{num_ranks} ranks of --parallel {settings.setup.parallel} needs one: leave out --probe measure "
            "and --device cuda to predict, or name a cluster with a node that has as many with --address"
        )
    raise DispatchError(
        "this machine has no GPU with that memory to measure on: leave out --probe measure and "
        "--device cuda to predict, or name a cluster that has one with --address"
    )
