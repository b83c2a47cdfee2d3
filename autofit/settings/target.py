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
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.protocol import Device, Probe
from autofit_workers.spec.trace import Trace

_SAME_CARD = 0.98  # ratio; NVML, CUDA and a card's nominal size differ by up to 2 % in total memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Device that a search is for, with its budget and how trials are measured.

    Attributes:
        card: card that predictions assume; for the CPU a card of the default architecture, as its curve has
            the shape of the CPU's.
        probe: how trials are measured; None if the answer is predicted.
        is_own_budget: whether every card that trials can run on is the named card; else trials emulate it by
            a limit on a larger card.
    """

    device: Device
    budget: Budget
    card: Card
    probe: Probe | None
    is_own_budget: bool = False


def among_ranks_of_script(target: Target, trace: Trace) -> Target:
    """Target with the budget recomputed for the process groups in the trace of a script's rank.

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
    """Target of a search, decided from the settings and the machine.

    Args:
        settings: the settings of the search.
        local_gpus: returns the cards of this machine; not called where a named card is only predicted.
        reachable: returns the GPUs that trials could run on; called only where a measurement may follow.

    Raises:
        UsageError: no card is named, and this machine has none.
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
    """Short name of a search's target for metrics and job names, such as `t4`, `16g` or `cpu`.

    It is the catalogue's key, `cpu`, or the memory such as `16g`; for a card that the catalogue does not
    have, the card's own name in the style of a key.
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
    """Whether a local GPU is the wanted card, by its memory and, if one is given, its name."""
    is_same_size = _SAME_CARD * total_bytes <= local.total_bytes <= total_bytes / _SAME_CARD
    return is_same_size and (named is None or _is_named(local.name, named))


def _is_every_card(names: tuple[str, ...], named: Gpu | None, num_gpus: int) -> bool:
    """Whether all GPUs of a cluster are the named card; False if any of them has no name."""
    return named is not None and len(names) == num_gpus and all(_is_named(name, named) for name in names)


def _is_named(name: str, named: Gpu) -> bool:
    try:
        return find_gpu(name) == named
    except UnknownGpuError:
        return False


def _local(
    local_gpus: Callable[[], tuple[LocalGpu, ...]], settings: TuneSettings, is_named: bool
) -> tuple[LocalGpu, ...]:
    """GPUs of this machine; empty where the driver does not answer and a prediction needs none."""
    try:
        return local_gpus()
    except DriverError:
        if is_named and settings.probe == "auto" and settings.device == "auto":
            return ()
        raise


def _cpu(settings: TuneSettings) -> Target:
    assert settings.gpu_mem_bytes is not None
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
    is_wanted = settings.probe == "measure" or settings.device == GPU_KIND
    num_ranks = settings.setup.num_ranks
    if settings.probe == "predict":
        return None
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
