"""Sources of cuDNN's convolution plans for a card: libcudnn if installed, else a table, else formulas.

The libcudnn of the environment is queried, because PyTorch would run with it; a CPU build of PyTorch brings
none.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from autofit import paths
from autofit.errors import StorageError, UnknownGpuError
from autofit.hardware.card import Card
from autofit.hardware.chips import properties_for
from autofit_workers.replay.curve.other_cards import OtherCards
from autofit_workers.replay.plans.cudnn import CudnnError
from autofit_workers.replay.plans.cudnn_plans import CudnnPlans
from autofit_workers.replay.plans.grid_plans import GridPlans
from autofit_workers.replay.plans.plan import PassedOn, Plan, PlanSource
from autofit_workers.replay.vendors import offline_source
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.versions import CUDNN_OF_WHEELS, release_of
from autofit_workers.spec.work import Convolution

PlanSources = Callable[[str], PlanSource]  # by architecture

_log = logging.getLogger(__name__)


@functools.cache
def plan_source(architecture: str) -> PlanSource:
    """Object that tells which kernels cuDNN chooses for convolutions on an architecture (their plans).

    Kernels differ in the scratch memory that they take. libcudnn itself is asked, if it is installed and can
    answer; else tables are used. The choice was seen to depend on the architecture alone: neither on the
    number of multiprocessors, nor on clocks, caches or memory.
    """
    return _asked(architecture) or offline_plan_source(architecture)


@functools.cache
def offline_plan_source(architecture: str, release: str | None = None) -> PlanSource:
    """Object that tells from tables, without libcudnn, which kernels cuDNN chooses for convolutions.

    It is used for the less likely architectures of a card that is not named: asking libcudnn about all of
    them would take some seconds for every batch size, and its answers differ little from the tables.

    Args:
        release: release of PyTorch whose cuDNN is meant; None for the installed one.
    """
    return offline_source(architecture, release or importlib.metadata.version("torch"))


def plan_sources_for(release: str | None) -> tuple[PlanSources, PlanSources]:
    """Functions that return the plan source for a likely architecture, and for any other one.

    Args:
        release: release of PyTorch that is predicted, by `--torch`; None for the installed one. Its cuDNN is
            asked if it is the installed one's; else its plans are those of tables.
    """
    installed = release_of(importlib.metadata.version("torch"))
    if release is None or CUDNN_OF_WHEELS[release] == CUDNN_OF_WHEELS.get(installed):
        return plan_source, offline_plan_source
    followed = functools.partial(offline_plan_source, release=release)
    return followed, followed


class AskedPlans(PassedOn):
    """Asks libcudnn which kernels it chooses for convolutions, or another source once libcudnn has failed.

    Args:
        asked: asks libcudnn, in a process that starts at the first question that is not in the cache.
        otherwise: source that is asked once libcudnn has failed.
    """

    def __init__(self, asked: CudnnPlans, otherwise: PlanSource) -> None:
        super().__init__(asked)
        self._asked = asked
        self._otherwise = otherwise

    @property
    def name(self) -> str:
        self.plans([])  # an empty query, which replaces the source if libcudnn fails
        return super().name

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Kernels that cuDNN may choose for each call, with the scratch memory that they take.

        Args:
            calls: convolutions with their shapes.
        """
        try:
            return self._source.plans(calls)
        except CudnnError as error:
            _log.warning("%s: convolution workspaces are from the %s", error, self._otherwise.name)
            self._source = self._otherwise
            return self._source.plans(calls)

    def prepare(self) -> None:
        """Starts libcudnn's process early; if that fails, the error shows at the first question."""
        with suppress(CudnnError):  # the first query for plans reports it
            self._asked.prepare()


def prepare(architecture: str, release: str | None) -> None:
    """Starts the process that asks libcudnn, if questions on `architecture` need it, and returns immediately.

    Args:
        release: release of PyTorch that is predicted; None for the installed one.
    """
    source = plan_sources_for(release)[0](architecture)
    if isinstance(source, AskedPlans):
        source.prepare()


def _asked(architecture: str) -> AskedPlans | None:
    """Source that asks libcudnn; None if libcudnn is missing or cannot answer for `architecture`."""
    if not (Architecture.of(architecture).is_planned_for and CudnnPlans.is_available()):
        return None
    try:
        asked = CudnnPlans(properties_for(architecture), cache_folder=paths.cache_path() / "plans")
    except (UnknownGpuError, StorageError) as error:
        _log.warning("libcudnn cannot plan convolution workspaces: %s", error)
        return None
    return AskedPlans(asked, offline_plan_source(architecture))


class CardPlans:
    """Sources of cuDNN's choices of kernels for convolutions, by card; what is known is kept for all curves.

    Args:
        likely: returns the source for an architecture that a card likely has.
        elsewhere: returns the source for each other architecture that a card may have if it is not named.
    """

    def __init__(self, likely: PlanSources, elsewhere: PlanSources) -> None:
        self._likely = likely
        self._elsewhere = elsewhere
        self._grids: dict[str, GridPlans] = {}
        self._others: dict[tuple[str, ...], OtherCards] = {}

    def source(self, card: Card, *, on_grid: bool) -> PlanSource:
        """Source of cuDNN's choices of kernels on the card's likely architecture.

        Args:
            on_grid: whether many batch sizes will be asked for; cuDNN is then asked about a few, and other
                sizes are interpolated.
        """
        name = card.architecture
        if not on_grid:
            return self._likely(name)
        if name not in self._grids:
            self._grids[name] = GridPlans(self._likely(name))
        return self._grids[name]

    def others(self, card: Card) -> OtherCards | None:
        """Sources of cuDNN's choices for the other architectures that a card may have; None without any."""
        names = card.architectures[1:]
        if not names:
            return None
        if names not in self._others:
            self._others[names] = OtherCards({name: self._elsewhere(name) for name in names})
        return self._others[names]
