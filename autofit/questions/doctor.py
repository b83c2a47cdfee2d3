"""Checks which features of autofit work on this machine, and suggests how to enable the others."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import Requirement

from autofit import paths
from autofit.dispatch.base import Runner
from autofit.errors import AutofitError
from autofit.hardware.gpus import LocalGpu, local_gpus
from autofit.predict.self_test import SelfTest, run_self_test
from autofit.predict.tracing import warm
from autofit.units import format_bytes
from autofit_workers.installation import DISTRIBUTION
from autofit_workers.process import operating_system
from autofit_workers.replay.allocator import is_compiled
from autofit_workers.spec.versions import is_supported, supported_releases
from autofit_workers.trials import door
from autofit_workers.trials.door import MORE

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check of this machine.

    Attributes:
        status: `failed` if commands would fail, `warning` if only some of autofit's features would not work.
        next_step: advice on a problem; empty without one.
    """

    name: str
    status: Status
    detail: str
    next_step: str = ""


def examine(
    *, run: Runner = door.run, gpus: Callable[[], tuple[LocalGpu, ...]] = local_gpus
) -> tuple[Check, ...]:
    """Runs all checks of this machine; creates the state directory if it is missing.

    Args:
        run: runs a trial, one prediction in a process of its own; here the self-test of predictions.
        gpus: returns this machine's cards, read from the driver.
    """
    return (
        _platform(),
        *_packages(),
        *_prediction(run),
        _replay(),
        _warm_tracer(),
        _gpus(gpus),
        _state_directory(),
        _cpu_measurement(),
    )


def _packages() -> Iterator[Check]:
    """Checks Python, and whether the packages that autofit requires are installed in fitting versions."""
    yield Check(name="python", status="ok", detail=platform.python_version())
    for text in importlib.metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is not None:
            continue  # required by an extra
        name = requirement.name
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name=name, status="failed", detail="not installed", next_step=f"pip install '{text}'")
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        yield Check(
            name=name,
            status="ok" if fits else "warning",
            detail=version,
            next_step="" if fits else f"pip install '{text}': the installed release is untested",
        )


def _platform() -> Check:
    """Check of whether autofit is tested on this operating system and machine."""
    detail = f"{operating_system.name()} {platform.machine()}"
    untested = operating_system.untested()
    if not untested:
        return Check(name="platform", status="ok", detail=detail)
    return Check(
        name="platform",
        status="warning",
        detail=f"{detail}: {untested}",
        next_step="go by the self-test of predictions below, or use Linux on x86-64",
    )


def _prediction(run: Runner) -> Iterator[Check]:
    result = run_self_test(run)
    yield _judged(result)
    if not result.findings:
        yield _boundary(result)


def _boundary(result: SelfTest) -> Check:
    """Checks that predicted workloads run isolated, without effect on this machine."""
    name = "isolation"
    if not result.unprotected:
        detail = "predicted workloads run in namespaces: they change no file, and reach no process or network"
        return Check(name=name, status="ok", detail=detail)
    return Check(
        name=name,
        status="warning",
        detail=result.unprotected.removesuffix(MORE),
        next_step="read what you predict, or predict on Linux"
        if operating_system.why_no_boundary()
        else "allow user namespaces on Linux (user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns, a container's seccomp profile), or read what you "
        "predict",
    )


def _judged(result: SelfTest) -> Check:
    """Checks whether predictions work with the installed PyTorch, by the result of the self-test."""
    if result.findings:
        return Check(
            name="prediction",
            status="failed",
            detail=f"PyTorch {result.torch_version}: {'; '.join(result.findings)}",
            next_step=(
                "repair the installation of torch"
                if result.unusable
                else f"install PyTorch {supported_releases()}, or measure instead of predicting"
            ),
        )
    if not is_supported(result.torch_version):
        return Check(
            name="prediction",
            status="warning",
            detail=f"PyTorch {result.torch_version} passes the self-test and is otherwise untested",
            next_step=f"install PyTorch {supported_releases()}, or compare a run with it: autofit observe",
        )
    return Check(
        name="prediction",
        status="ok",
        detail=f"PyTorch {result.torch_version} passes the self-test",
    )


def _replay() -> Check:
    """Check of whether replays are compiled; without a compiler the same answers take longer."""
    if is_compiled():
        return Check(name="replay", status="ok", detail="compiled")
    return Check(
        name="replay",
        status="ok",
        detail="in Python: answers are the same, and come faster where a C compiler is on PATH when autofit "
        "is installed",
    )


def _warm_tracer() -> Check:
    """Check that tells whether a warm tracer runs, and for how long."""
    state = warm.state()
    if state is None:
        detail = "none runs"
    else:
        others = "" if state.is_alike else " (started for another environment)"
        detail = (
            f"process {state.process}{others} ends in {state.seconds_left:.0f} s if it is not asked again"
        )
    return Check(name="warm tracer", status="ok", detail=detail)


def _gpus(gpus: Callable[[], tuple[LocalGpu, ...]]) -> Check:
    try:
        cards = gpus()
    except AutofitError as error:
        return Check(
            name="gpus", status="warning", detail=error.message, next_step="run nvidia-smi to find the cause"
        )
    if not cards:
        return Check(name="gpus", status="ok", detail="none found; predictions do not need one")
    names = ", ".join(f"{card.name} ({format_bytes(card.total_bytes)})" for card in cards)
    return Check(name="gpus", status="ok", detail=f"{names}; driver {cards[0].driver_version}")


def _state_directory() -> Check:
    try:
        for folder in (paths.studies_dir, paths.traces_dir, paths.cache_dir):
            folder()
    except AutofitError as error:
        return Check(
            name="state directory",
            status="failed",
            detail=error.message,
            next_step=f"set {paths.STATE_DIR_VARIABLE} to a writable folder",
        )
    return Check(name="state directory", status="ok", detail=str(paths.state_dir()))


def _cpu_measurement() -> Check:
    """Checks that the kernel can limit a process's memory, and that its peak can be read from /proc."""
    if missing := operating_system.missing_for_cpu_trials():
        return Check(
            name="measuring on the CPU",
            status="warning",
            detail=" and ".join(missing),
            next_step="use Linux for --device cpu; predictions work without it",
        )
    return Check(name="measuring on the CPU", status="ok", detail="memory limits and peak readings work")
