"""Base of the kinds of parallelism: the hooks by which a kind changes a trial, from checks to a step.

    require_applicable      checks the trial before anything is built
    join, joined            prepares the process, until it ends or for one prediction
    dealt                   assigns layers to several devices of one process
    cut                     takes this rank's part of the model on the host, such as pipeline stages
    taken, spreading        shards the model as it moves to the device: as a whole, then part by part
    wrapped                 wraps the model on the device
    engine                  makes an engine that trains the model in place of its optimizers
    sharing                 cuts each batch to this rank's part

A kind is a file with a subclass of `Strategy`, and a line in `autofit_workers.spec.parallel_kinds` that names
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
    """Distribution of a model's modules over several devices.

    Attributes:
        device_of: returns the device for a module's own parameters and buffers.
        link: called once all modules are on their devices; makes the model move activations between devices.
    """

    device_of: Callable[[torch.nn.Module], torch.device]
    link: Callable[[], None]


class Placement:
    """Mesh, device kind and parameter dtype by which a model is distributed over ranks.

    Args:
        parallel: parallelism of all ranks, whose process group must exist when the mesh is used first.

    Attributes:
        device_kind: `cuda` or `cpu`.
        dtype: autocast's dtype, to which some kinds cast parameters; None without mixed precision.
    """

    def __init__(self, parallel: Parallel, device_kind: str, dtype: torch.dtype | None) -> None:
        self._parallel = parallel
        self._mesh: Any = None
        self.device_kind = device_kind
        self.dtype = dtype

    @property
    def mesh(self) -> Any:
        """Device mesh of all ranks, made on first use, as not every kind of parallelism needs one."""
        if self._mesh is None:
            self._mesh = mesh_of(self._parallel, self.device_kind)
        return self._mesh


class Engine(ABC):
    """Base of engines, such as DeepSpeed's, that train a model in place of its optimizers.

    Attributes:
        optimizer: optimizer that holds the states of this rank.
    """

    optimizer: Optimizers

    @abstractmethod
    def stepped(self, workload: Workload, phase: PhaseHook = no_phase) -> Workload:
        """Copy of `workload` whose step uses this engine's backward and optimizer step.

        Args:
            phase: called with the phase's name when backward and the optimizer's step begin.
        """

    @abstractmethod
    def held(self) -> Iterator[tuple[Iterable[torch.Tensor], Category]]:
        """Tensors, by category, that the engine itself keeps between steps, such as float32 weights."""


class Strategy:
    """Base of the kinds of parallelism, such as FSDP: how each changes a model, a batch and a step.

    A method that a kind does not override does nothing.

    Args:
        parallel: parallelism of all ranks, which includes this kind.

    Attributes:
        brings_model: whether the kind's engine moves the model to the device; else the trial does.
    """

    brings_model: ClassVar[bool] = False

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel

    def require_applicable(self, spec: TrialSpec, workload: Workload) -> None:
        """Checks that this kind of parallelism can run a trial (one predicted or measured run).

        Args:
            spec: description of the trial.
            workload: its workload, in which the trial's knobs are applied.

        Raises:
            InapplicableError: this kind does not support the mode, a knob or the device.
        """

    def takes_base(self, _base: str) -> bool:
        """Whether ranks can shard weights quantized as `_base`, a value of the knob `base`, says."""
        return False

    def join(self, device_kind: str) -> None:
        """Prepares this process for this kind of parallelism, until the process ends.

        The process must have joined the process group of all ranks.

        Args:
            device_kind: `cuda` or `cpu`.

        Raises:
            MissingLibraryError: a library is not installed here.
        """

    def joined(self, _device_kind: str) -> AbstractContextManager[None]:
        """Context manager that applies `join` and undoes it; raises `MissingLibraryError` as `join` does."""
        return nullcontext()

    def cut(self, model: torch.nn.Module, _rank: int, _workload: Workload) -> torch.nn.Module:
        """Part of `model`, on the host, that rank `_rank` runs; the whole model by default.

        Raises:
            InapplicableError: this kind cannot cut the model.
        """
        return model

    def dealt(self, _model: torch.nn.Module, _base: str | None) -> Dealt | None:
        """Assignment of a model's modules to several GPUs of this process; None if one GPU has them all.

        Args:
            _model: the model.
            _base: value of the knob `base`, which names the type of the model's own weights.

        Raises:
            InapplicableError: the model cannot be distributed over the GPUs.
            MissingLibraryError: a library is not installed here.
        """
        return None

    def taken(self, model: torch.nn.Module, _placement: Placement) -> torch.nn.Module:
        """Model prepared or wrapped as a whole, before its parts are sharded one by one.

        Args:
            model: the model, on the host.
            _placement: mesh, device kind and dtype.

        Raises:
            InapplicableError: this kind cannot distribute the model.
        """
        return model

    def spreading(self, _part: torch.nn.Module, _placement: Placement, *, is_stage: bool) -> Spread | None:
        """Function that shards a module over the ranks; None if this kind shards no modules.

        It is called with each repeated block of `_part`, and then with `_part`.

        Args:
            _part: the model, or a stage of a pipeline.
            is_stage: whether it is a stage, without the modules of other stages.

        Raises:
            InapplicableError: the model has no plan for this kind, or its plan cannot divide it.
        """
        del is_stage
        return None

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """Model on its device, wrapped for measured steps, as in `DistributedDataParallel`."""
        return model

    def engine(
        self, _model: torch.nn.Module, _optimizers: Optimizers, _knobs: Knobs, _batch_size: int
    ) -> Engine | None:
        """Engine that trains in place of the optimizers; None if this kind of parallelism has none.

        Raises:
            InapplicableError: the engine does not support such optimizers.
        """
        return None

    def sharing(
        self, _model: torch.nn.Module, _device_kind: str
    ) -> Callable[[Any], AbstractContextManager[None]]:
        """Function that takes a batch and returns a context manager in which the batch is this rank's part.

        Raises:
            InapplicableError: the model does not support parts of batches.
        """
        return lambda _batch: nullcontext()

    def notes(self, _model: torch.nn.Module, _precision: str) -> tuple[str, ...]:
        """Sentences for the user on how the model was distributed over the ranks."""
        return ()

    @staticmethod
    def followed() -> Followed:
        """Methods of library classes, each with the category under which the memory it allocates is listed.

        A prediction sets this category, such as gradient, in the trace while the method runs.
        """
        return {}


def require_card(spec: TrialSpec) -> None:
    """Raises `InapplicableError` if a trial that offloads from a GPU to the host is for the CPU."""
    if spec.is_for_host:
        raise InapplicableError(
            f"--parallel {spec.setup.parallel} brings shards from a GPU to the host, and trials on the CPU "
            "have them there: leave out +offload"
        )


def strategies_of(parallel: Parallel) -> tuple[Strategy, ...]:
    """Strategies of all kinds in `parallel`, from the outermost dimension of the mesh to the innermost."""
    files = dict.fromkeys(PARALLEL_KINDS[kind].file for kind, _ in parallel.degrees)
    modules: list[Any] = [importlib.import_module(f"{__package__}.{file}") for file in files]
    return tuple(module.STRATEGY(parallel) for module in modules)


def taken_out(
    remaining: dict[str, str], modules: Mapping[str, torch.nn.Module], part: torch.nn.Module
) -> dict[str, str]:
    """Removes the entries of a parallel plan that are for one part of a model, and returns them.

    Args:
        remaining: transformers' plan, a parallel style by name of a module or parameter; loses the entries
            that are returned.
        modules: the model's modules, by name.
        part: the part of the model.
    """
    inside = set(part.modules())
    named = [name for name in remaining if modules.get(name, modules.get(name.rpartition(".")[0])) in inside]
    return {name: remaining.pop(name) for name in named}


def mesh_of(parallel: Parallel, device_kind: str) -> Any:
    """Device mesh of all ranks, with a dimension named after each kind of parallelism."""
    from torch.distributed.device_mesh import init_device_mesh

    kinds, degrees = zip(*parallel.degrees, strict=True)
    return init_device_mesh(device_kind, degrees, mesh_dim_names=kinds)
