"""Makes this process one rank of several: applies all kinds of parallelism of a trial to its model.

A process group must exist, but not the other ranks: a prediction uses a fake group
(`autofit_workers.tracing.fake.ranks`), a measured trial a real one (`meeting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from autofit_workers.apply import setting
from autofit_workers.apply.checkpointing import repeated_blocks
from autofit_workers.apply.compiling import compiled
from autofit_workers.apply.parallel import meeting
from autofit_workers.apply.parallel.strategy import Dealt, Engine, Followed, Placement, strategies_of
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.base import QUANTIZATIONS
from autofit_workers.spec.protocol import Probe, TrialSpec
from autofit_workers.spec.setup import GENERATE, TRAIN, Parallel
from autofit_workers.workload.step import ScheduledModel, seed
from autofit_workers.workload.workload import Optimizers, Workload


class Ranks:
    """Process as one of several ranks, with their kinds of parallelism applied to its model.

    Without parallelism the methods have no effect.

    Args:
        parallel: kinds of parallelism of all ranks, with their degrees.

    Attributes:
        parallel: the parallelism that was given.
        brings_model: whether an engine, such as DeepSpeed's, moves the model to the device.
    """

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel
        self._strategies = strategies_of(parallel)
        self.brings_model = any(each.brings_model for each in self._strategies)

    def require_applicable(self, spec: TrialSpec, workload: Workload) -> None:
        """Checks that ranks of this parallelism can run a trial (one predicted or measured run).

        Args:
            spec: description of the trial.
            workload: its workload, in which the trial's knobs are applied.

        Raises:
            InapplicableError: this parallelism does not support the mode, a knob, or measuring.
        """
        parallel, base = self.parallel, spec.knobs.base
        if not parallel:
            return
        if spec.probe is not Probe.PREDICT and not parallel.can_be_measured:
            raise InapplicableError(
                f"--parallel {parallel} is predicted and not measured: leave out what measures (--probe "
                "measure, --device), or use another kind"
            )
        for each in self._strategies:
            each.require_applicable(spec, workload)
        if workload.mode == GENERATE:
            raise InapplicableError(
                f"--parallel {parallel} is for training and inference: leave out --parallel to generate"
            )
        if base in QUANTIZATIONS and not all(each.takes_base(base) for each in self._strategies):
            raise InapplicableError(
                f"--parallel {parallel} cannot be combined with base {base}: of quantized weights, only "
                "those of bitsandbytes in 4 bits can be sharded, and only by fsdp1:N; use both, or ddp:N"
            )

    def join(self, spec: TrialSpec, device: torch.device) -> None:
        """Joins the process group of a measured trial's ranks, until this process ends."""
        if not self.parallel:
            return
        meeting.join(device, spec.deadline_seconds)
        for each in self._strategies:
            each.join(device.type)

    @contextmanager
    def joined(self, device_kind: str) -> Iterator[None]:
        """Context manager that prepares this process as a rank of a group whose other ranks are absent."""
        with ExitStack() as kept:
            for each in self._strategies:
                kept.enter_context(each.joined(device_kind))
            yield

    @property
    def followed(self) -> tuple[Followed, ...]:
        """Methods of library classes, each with the category under which the memory it allocates is listed.

        See `Strategy.followed`.
        """
        return tuple(each.followed() for each in self._strategies)

    def cut(self, model: torch.nn.Module, workload: Workload) -> torch.nn.Module:
        """Part of `model` that this rank runs, such as pipeline stages, before parameters are sharded.

        Raises:
            InapplicableError: a kind of parallelism cannot cut the model.
        """
        for each in self._strategies if self.parallel.shards else ():
            model = each.cut(model, torch.distributed.get_rank(), workload)
        return model

    def dealt(self, model: torch.nn.Module, base: str | None) -> Dealt | None:
        """Assignment of a model's modules to several GPUs of this process; None if one GPU has them all.

        Args:
            model: the model.
            base: type of its base weights (the knob `base`), which decides their sizes; None for their own.

        Raises:
            InapplicableError, MissingLibraryError: see `Strategy.dealt`.
        """
        found = (each.dealt(model, base) for each in self._strategies)
        return next((dealt for dealt in found if dealt is not None), None)

    def spread(self, model: torch.nn.Module, *, device_kind: str, precision: str = "fp32") -> torch.nn.Module:
        """Model with only this rank's shards; it is sharded and moved to the device block by block.

        Args:
            model: the model, on the host.
            device_kind: `cuda` or `cpu`.
            precision: value of the knob; with amp, some kinds cast parameters to autocast's type.

        Raises:
            InapplicableError: the model has no plan for a kind of parallelism, or its plan cannot divide it.
        """
        placement = Placement(self.parallel, device_kind, setting.AUTOCAST_DTYPES.get(precision))
        for each in self._strategies:
            model = each.taken(model, placement)
        for part, blocks in parts_of(model):
            # The innermost dimension of the mesh shards tensors first.
            found = [
                each.spreading(part, placement, is_stage=part is not model)
                for each in reversed(self._strategies)
            ]
            # Block by block, so that only one unsharded block is on the device at a time.
            for module in (*blocks, part):
                for spread in found:
                    if spread is not None:
                        spread(module)
        return model

    def placed(
        self, model: torch.nn.Module, knobs: Knobs, device: torch.device, workload: Workload
    ) -> torch.nn.Module:
        """Model of a measured trial on its device, or this rank's part of it where ranks share the model.

        Raises:
            InapplicableError, MissingLibraryError: `setting.placed_model`, `cut` or `spread` raises it.
        """
        parallel = self.parallel
        if not parallel.shards:
            return setting.placed_model(model, knobs, device)
        if self.brings_model:
            return setting.adapted_model(model, knobs)
        if knobs.base in QUANTIZATIONS:
            raise InapplicableError(
                f"--parallel {parallel} with base {knobs.base} is predicted and not measured: leave out what "
                "measures (--probe measure, --device), or use ddp:N"
            )
        model = self.cut(setting.adapted_model(model, knobs), workload)
        model = self.spread(model, device_kind=device.type, precision=knobs.precision)
        if workload.mode == TRAIN and knobs.clip_grad_norm is not None:
            require_one_mesh(model, self.parallel)
        model = model.to(device)  # modules that are not sharded
        return compiled(model, knobs) if knobs.compile else model

    def wrapped(self, model: torch.nn.Module, first_seed: int) -> torch.nn.Module:
        """Model wrapped for measured steps, for example in DDP.

        Also seeds this rank's random numbers: ranks that share batches get the same seed, others the next
        ones.

        Args:
            model: the model, on its device.
            first_seed: seed of the first group of ranks that share batches.
        """
        if not self.parallel:
            return model
        for each in self._strategies:
            model = each.wrapped(model)
        seed(first_seed + self.parallel.replica(torch.distributed.get_rank()))
        return model

    def engine(
        self, model: torch.nn.Module, optimizers: Optimizers, knobs: Knobs, batch_size: int
    ) -> Engine | None:
        """Engine, such as DeepSpeed's, that trains in place of the optimizers; None if no kind has one.

        Args:
            model: the model, on the host.
            optimizers: optimizers of its parameters.
            knobs: the knob setting.
            batch_size: number of samples per rank in each of the batches that a step accumulates.

        Raises:
            InapplicableError: the engine does not support such optimizers.
        """
        found = (each.engine(model, optimizers, knobs, batch_size) for each in self._strategies)
        return next((engine for engine in found if engine is not None), None)

    def sharing(
        self, model: torch.nn.Module, device_kind: str
    ) -> Callable[[Any], AbstractContextManager[None]]:
        """Function that takes a batch and returns a context manager in which the batch is this rank's part.

        Raises:
            InapplicableError: the model does not support parts of batches.
        """
        found = [each.sharing(model, device_kind) for each in self._strategies]

        @contextmanager
        def shared(batch: Any) -> Iterator[None]:
            with ExitStack() as kept:
                for each in found:
                    kept.enter_context(each(batch))
                yield

        return shared

    def notes(self, model: torch.nn.Module, precision: str) -> tuple[str, ...]:
        """Sentences for the user on how the model was distributed over the ranks."""
        return tuple(note for each in self._strategies for note in each.notes(model, precision))


def parts_of(model: torch.nn.Module) -> Sequence[tuple[torch.nn.Module, Sequence[torch.nn.Module]]]:
    """Parts of a model that are sharded separately: its pipeline stages, or else the whole model.

    Each part is followed by its repeated blocks.
    """
    if isinstance(model, ScheduledModel):
        return model.parts
    return ((model, [block for _, block in repeated_blocks(model)]),)


def require_one_mesh(model: torch.nn.Module, parallel: Parallel) -> None:
    """Checks that all trained parameters are on one mesh, as `clip_grad_norm_` needs to stack their norms.

    Raises:
        InapplicableError: tensor parallelism left some of the parameters off its ranks.
    """
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    meshes = {name: getattr(each, "device_mesh", None) for name, each in trained}
    num_dims = {name: 0 if mesh is None else mesh.ndim for name, mesh in meshes.items()}
    if len(set(num_dims.values())) > 1:
        left = min(num_dims, key=num_dims.__getitem__)
        raise InapplicableError(
            f"--parallel {parallel} cannot be combined with --clip-grad-norm: tp leaves {left} as it is, and "
            "PyTorch's clip_grad_norm_ takes gradients of one mesh alone: leave out the option, or use fsdp:N"
        )


def require_one_kind(model: torch.nn.Module, parallel: Parallel) -> None:
    """Checks that trained parameters are all `DTensor`s or all plain tensors.

    Optimizers need this if they update all parameters at once (foreach), as PyTorch's do by default on a GPU.

    Raises:
        InapplicableError: some of the parameters are sharded, and others are not.
    """
    from torch.distributed.tensor import DTensor

    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    whole = [name for name, each in trained if not isinstance(each, DTensor)]
    if 0 < len(whole) < len(trained):
        raise InapplicableError(
            f"--parallel {parallel} leaves {whole[0]} whole, and PyTorch's optimizers that take several "
            "tensors at once, which is the default on a GPU, refuse a mixture with DTensors: choose "
            f"--optimizer-impl loop, or fsdp:N,{parallel}"
        )
