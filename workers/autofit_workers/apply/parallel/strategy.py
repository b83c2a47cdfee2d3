"""What a kind of parallelism may do with a model, from what it refuses to a step.

    require_applicable      before anything is built
    join, joined            this process among the others: for good, and in a prediction
    cut                     the model on the host
    taken, spreading        the model on its way to the device: as a whole, then part by part
    dealt                   the model on the host, where several devices take parts of it
    wrapped                 the model on the device
    engine                  what trains it in the place of its optimizers
    sharing                 each batch

A kind is a file with a class of this one's, and a line in `autofit_workers.spec.parallel_kinds` that names
the file.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.parallel_kinds import PARALLEL_KINDS
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import Category
from autofit_workers.workload.step import PhaseHook, no_phase
from autofit_workers.workload.workload import Optimizers, Workload

Spread = Callable[[torch.nn.Module], object]
Followed = Mapping[Any, Mapping[str, Category]]
KEPT_BY_HOST = "parameters, gradients and optimizer states are on the host, where the optimizer steps"


class Dealt(NamedTuple):
    """A model that several devices take parts of.

    Attributes:
        device_of: where a module's own parameters and buffers go.
        link: lets the model move what it computes from device to device, once all are there.
    """

    device_of: Callable[[torch.nn.Module], torch.device]
    link: Callable[[], None]


class Placement:
    """Where a model is spread, and what it computes in.

    Args:
        parallel: of all ranks, whose process group is there when the mesh is asked for.

    Attributes:
        device_kind: `cuda` or `cpu`.
        dtype: what a kind casts parameters to, if it does; None where the precision is not mixed.
    """

    def __init__(self, parallel: Parallel, device_kind: str, dtype: torch.dtype | None) -> None:
        self._parallel = parallel
        self._mesh: Any = None
        self.device_kind = device_kind
        self.dtype = dtype

    @property
    def mesh(self) -> Any:
        """Of all ranks; not every kind needs one."""
        if self._mesh is None:
            self._mesh = mesh_of(self._parallel, self.device_kind)
        return self._mesh


class Engine(ABC):
    """What trains a model in the place of its optimizers.

    Attributes:
        optimizer: what holds the states of this rank.
    """

    optimizer: Optimizers

    @abstractmethod
    def stepped(self, workload: Workload, phase: PhaseHook = no_phase) -> Workload:
        """The workload with the step of this engine.

        Args:
            phase: is told of backward and the optimizer's step as each begins.
        """

    @abstractmethod
    def held(self) -> Iterator[tuple[Iterable[torch.Tensor], Category]]:
        """What it keeps from step to step, beside what its model and its optimizer say of themselves."""


class Strategy:
    """What ranks do by one kind of parallelism: nothing, as far as a kind does not say it.

    Args:
        parallel: of all ranks, this kind among them.

    Attributes:
        brings_model: whether its engine brings the model to the device.
    """

    brings_model: ClassVar[bool] = False

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel

    def require_applicable(self, spec: TrialSpec, workload: Workload) -> None:
        """Refuses what ranks do not do together so.

        Args:
            workload: once it is overridden.

        Raises:
            InapplicableError: a mode, a knob or a device is not for it.
        """

    def takes_base(self, _base: str) -> bool:
        """Whether it can spread weights that a library quantized."""
        return False

    def join(self, device_kind: str) -> None:
        """Prepares this process, which has joined the group of all ranks, until it ends.

        Raises:
            MissingLibraryError: a library is not installed here.
        """

    def joined(self, _device_kind: str) -> AbstractContextManager[None]:
        """Does so in a block, after which others may follow in the same process; raises likewise."""
        return nullcontext()

    def cut(self, model: torch.nn.Module, _rank: int, _workload: Workload) -> torch.nn.Module:
        """What a rank has of a model.

        Raises:
            InapplicableError: the model cannot be cut so.
        """
        return model

    def dealt(self, _model: torch.nn.Module, _base: str | None) -> Dealt | None:
        """Which of several devices each module goes to; None where there is one.

        Args:
            base: of the knob: how the model's own weights are kept.

        Raises:
            InapplicableError: the model cannot be dealt out so.
            MissingLibraryError: a library is not installed here.
        """
        return None

    def taken(self, model: torch.nn.Module, _placement: Placement) -> torch.nn.Module:
        """The model, before its parts are spread one after the other.

        Raises:
            InapplicableError: the model cannot be spread so.
        """
        return model

    def spreading(self, _part: torch.nn.Module, _placement: Placement, *, is_stage: bool) -> Spread | None:
        """What spreads the modules of a part of a model, given each block and then the part; None: nothing.

        Args:
            is_stage: whether it is a stage of a pipeline, without the modules of others.

        Raises:
            InapplicableError: the model has no plan for it, or cannot be divided so.
        """
        del is_stage
        return None

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on its device, as measured ranks call it."""
        return model

    def engine(
        self, _model: torch.nn.Module, _optimizers: Optimizers, _knobs: Knobs, _batch_size: int
    ) -> Engine | None:
        """What trains a model in the place of its optimizers, if anything does.

        Raises:
            InapplicableError: it does not with such optimizers.
        """
        return None

    def sharing(
        self, _model: torch.nn.Module, _device_kind: str
    ) -> Callable[[Any], AbstractContextManager[None]]:
        """What leaves this rank its part of each batch, in whose block a pass over it runs.

        Raises:
            InapplicableError: the model does not work on parts of batches.
        """
        return lambda _batch: nullcontext()

    def notes(self, _model: torch.nn.Module, _precision: str) -> tuple[str, ...]:
        """How the model was spread, in sentences for whoever reads the answer."""
        return ()

    @staticmethod
    def followed() -> Followed:
        """Methods, by their class, with what the memory is for that they allocate."""
        return {}


def require_card(spec: TrialSpec) -> None:
    """Checks that what is offloaded comes from a card.

    Raises:
        InapplicableError: the trial is for the host.
    """
    if spec.is_for_host:
        raise InapplicableError(
            f"--parallel {spec.setup.parallel} brings shards from a GPU to the host, and trials on the CPU "
            "have them there: leave out +offload"
        )


def strategies_of(parallel: Parallel) -> tuple[Strategy, ...]:
    """Those of all kinds, from the outermost dimension of the mesh to the innermost."""
    files = dict.fromkeys(PARALLEL_KINDS[kind].file for kind, _ in parallel.degrees)
    modules: list[Any] = [importlib.import_module(f"{__package__}.{file}") for file in files]
    return tuple(module.STRATEGY(parallel) for module in modules)


def taken_out(
    remaining: dict[str, str], modules: Mapping[str, torch.nn.Module], part: torch.nn.Module
) -> dict[str, str]:
    """What a plan of transformers says of a part of the model, taken out of what remains of the plan.

    A plan names modules, and parameters of modules.

    Args:
        modules: of the model, by name.
    """
    inside = set(part.modules())
    named = [name for name in remaining if modules.get(name, modules.get(name.rpartition(".")[0])) in inside]
    return {name: remaining.pop(name) for name in named}


def mesh_of(parallel: Parallel, device_kind: str) -> Any:
    """The mesh of all ranks, with a dimension for each kind of parallelism, by its name."""
    from torch.distributed.device_mesh import init_device_mesh

    kinds, degrees = zip(*parallel.degrees, strict=True)
    return init_device_mesh(device_kind, degrees, mesh_dim_names=kinds)
