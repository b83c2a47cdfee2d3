"""ZeRO by DeepSpeed, whose engine calls the model, runs backward and steps the optimizer.

    zero1, zero2    the engine moves the whole model to the device, and shards optimizer states; zero2 also
                    gradients
    zero3           `deepspeed.zero.Init` moves parameters one by one, and keeps this rank's shard
    +offload        optimizer states are on the host in pinned memory, where DeepSpeedCPUAdam steps; with
                    zero3 parameters too

Settings without a knob have DeepSpeed's defaults: the sizes of its buckets, whether communication overlaps.
Sources are DeepSpeed 0.19's runtime/engine.py, runtime/config.py and runtime/zero/.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from autofit_workers.apply.parallel.strategy import Engine, Followed, Strategy
from autofit_workers.apply.setting import AUTOCAST_DTYPES
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.deepspeed_config import PRECISION_SECTIONS, deepspeed_config
from autofit_workers.spec.parallel_kinds import Zero
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.setup import TRAIN, Parallel
from autofit_workers.spec.trace import Category
from autofit_workers.workload.step import PhaseHook, no_phase
from autofit_workers.workload.workload import Optimizers, Workload, check_loss

_DTYPES = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16, "bf16": torch.bfloat16}
# Optimizers that DeepSpeedCPUAdam can replace, and whether their weight decay is decoupled.
_ADAMS: dict[type, bool] = {torch.optim.Adam: False, torch.optim.AdamW: True}

_SHARED_MEMORY = "deepspeed_shm_comm"  # an operator that exchanges tensors of the CPU


class ZeroRanks(Strategy):
    """ZeRO: ranks shard optimizer states, gradients and parameters, as far as its stage says."""

    brings_model = True

    def require_applicable(self, spec: TrialSpec, workload: Workload) -> None:
        _require_applicable(self.parallel, spec.knobs, workload.mode, has_step=workload.step is not None)

    def join(self, device_kind: str) -> None:
        join(device_kind)

    def joined(self, device_kind: str) -> AbstractContextManager[None]:
        return joined(device_kind)

    def engine(
        self, model: torch.nn.Module, optimizers: Optimizers, knobs: Knobs, batch_size: int
    ) -> ZeroEngine:
        return ZeroEngine(_engine(model, optimizers, self.parallel, knobs, batch_size))

    def notes(self, _model: torch.nn.Module, precision: str) -> tuple[str, ...]:
        assert self.parallel.zero is not None
        return _notes(self.parallel.zero, precision)

    @staticmethod
    def followed() -> Followed:
        """Method of DeepSpeed that allocates gathered parameters.

        Its class, of runtime/zero/partitioned_param_coordinator.py, is imported here.
        """
        from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

        return {PartitionedParameterCoordinator: {"fetch_sub_module": Category.PARAMETER}}


STRATEGY = ZeroRanks


class ZeroEngine(Engine):
    """DeepSpeed's engine on this rank, which divides losses, clips gradients and decides when to step.

    In the trace, tensors that ranks exchange, such as buckets, count neither as parameters nor as gradients.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.optimizer = engine.basic_optimizer

    def stepped(self, workload: Workload, phase: PhaseHook = no_phase) -> Workload:
        engine = self._engine

        def step(_model: torch.nn.Module, _optimizer: Any, batch: Any) -> None:
            loss = workload.loss(engine, batch)
            check_loss(loss)
            phase("backward")
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                phase("optimizer")
            engine.step()

        return dataclasses.replace(workload, step=step)

    def held(self) -> Iterator[tuple[Iterable[torch.Tensor], Category]]:
        optimizer = self._engine.optimizer
        shards = [each.ds_tensor for each in self._engine.module.parameters() if hasattr(each, "ds_tensor")]
        yield shards, Category.PARAMETER
        # Attributes with float32 weights, by stage of ZeRO, which count as optimizer states.
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
            yield getattr(optimizer, name, ()), Category.OPTIMIZER_STATE
        flat = getattr(optimizer, "grad_partitions_flat_buffer", None)
        yield () if flat is None else (flat,), Category.GRADIENT


def _require_applicable(parallel: Parallel, knobs: Knobs, mode: str, *, has_step: bool) -> None:
    """Raises `InapplicableError` for modes, knobs and workload steps that DeepSpeed does not take.

    Args:
        mode: mode of the workload, with the overrides of the trial.
        has_step: whether the workload has a step of its own.
    """
    reasons = {
        f"is for training: in mode {mode} there is nothing of an optimizer to shard": mode != TRAIN,
        "steps the optimizer itself, and so does the workload: use fsdp:N": has_step,
        "drops gradients after each step: leave out --set-to-none": not knobs.set_to_none,
        "is not compiled: leave out --compile": knobs.compile,
    }
    for reason, applies in reasons.items():
        if applies:
            raise InapplicableError(f"--parallel {parallel} {reason}")


def library() -> Any:
    """Imports DeepSpeed, set to log errors only, and returns its module.

    Raises:
        MissingLibraryError: DeepSpeed is not installed here.
    """
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise MissingLibraryError(
            "zero1, zero2 and zero3 are DeepSpeed's, which is not installed where trials run: "
            "pip install deepspeed"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it reports its work on stdout
    return deepspeed


def join(device_kind: str) -> None:
    """Makes DeepSpeed use the device kind and the existing process group, until this process ends.

    Raises:
        MissingLibraryError: DeepSpeed is not installed here.
    """
    # A rank has its card as device 0.
    os.environ.update(LOCAL_RANK="0", DS_ACCELERATOR=device_kind)
    deepspeed = library()
    from deepspeed.accelerator import real_accelerator

    real_accelerator.ds_accelerator = None
    # On the CPU this operator would be compiled, for data that few ranks on one machine exchange anyway.
    deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


@contextmanager
def joined(device_kind: str) -> Iterator[None]:
    """Context manager that applies `join` and undoes it, so that other trials may follow in the process.

    Raises:
        MissingLibraryError: see `join`.
    """
    before = {name: os.environ.get(name) for name in ("LOCAL_RANK", "DS_ACCELERATOR")}
    plain_linear = torch.nn.functional.linear
    try:
        join(device_kind)
        yield
    finally:
        torch.nn.functional.linear = plain_linear  # ZeRO 3 would leave its own
        if "deepspeed" in sys.modules:
            _leave()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _leave() -> None:
    """Resets DeepSpeed's state of the last model and its process groups, but keeps PyTorch's group."""
    from deepspeed.comm import comm
    from deepspeed.runtime.zero.partition_parameters import Init
    from deepspeed.utils import groups

    # Facts about the last model, with which the next would be sharded differently.
    Init.apply_param_persistence, Init.num_persisted_parameters, Init.num_persisted_elements = False, 0, 0
    groups._release_process_group_references()  # noqa: SLF001 - the public one destroys the group too
    comm.cdb = None


def _engine(
    model: torch.nn.Module, optimizers: Optimizers, parallel: Parallel, knobs: Knobs, batch_size: int
) -> Any:
    """DeepSpeed's engine on this rank, which moves the model to the device and trains it, inside `joined`.

    Args:
        model: the model, on the host.
        optimizers: optimizers of the model's parameters.
        batch_size: number of samples per rank in each of the batches that a step accumulates.

    Raises:
        InapplicableError: there are several optimizers, or this host lacks an operator that is needed.
    """
    zero = parallel.zero
    assert zero is not None
    if not isinstance(optimizers, torch.optim.Optimizer):
        raise InapplicableError(
            f"--parallel {parallel}: DeepSpeed takes one optimizer, and here are {len(optimizers)}: "
            "choose an --optimizer that is one for all parameters, such as adamw"
        )
    deepspeed = library()
    optimizer = _on_host(optimizers, parallel, knobs) if zero.offloads else optimizers
    told = deepspeed_config(zero, knobs, batch_size)
    if zero.stage == 3:
        _prepare(model, _DTYPES.get(knobs.precision))
        deepspeed.zero.Init(module=model, config_dict_or_path=told)
    made, *_others = deepspeed.initialize(model=model, optimizer=optimizer, config=told)
    return made


def _prepare(model: torch.nn.Module, dtype: torch.dtype | None) -> None:
    """Moves buffers to the device and casts parameters, as `zero.Init` does only for a model built in it."""
    from deepspeed.accelerator import get_accelerator

    device = torch.device(get_accelerator().current_device_name())
    for module in model.modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - no public way to change one
            module._buffers[name] = None if buffer is None else buffer.to(device)  # noqa: SLF001
    for parameter in model.parameters():
        if dtype is not None and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def _on_host(optimizer: torch.optim.Optimizer, parallel: Parallel, knobs: Knobs) -> torch.optim.Optimizer:
    """Optimizer for ZeRO-Offload: DeepSpeed's CPU Adam in place of PyTorch's; others unchanged."""
    is_decoupled = _ADAMS.get(type(optimizer))
    if is_decoupled is None:
        if knobs.precision == "bf16":
            raise InapplicableError(
                f"--parallel {parallel} with precision bf16 is for adam and adamw, which DeepSpeed has for "
                "the CPU in bfloat16: choose one of them, or precision amp-bf16"
            )
        return optimizer
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    kept = ("params", "lr", "betas", "eps", "weight_decay")
    made: torch.optim.Optimizer = DeepSpeedCPUAdam(
        [{name: group[name] for name in kept} for group in optimizer.param_groups],
        adamw_mode=is_decoupled,
        fp32_optimizer_states=knobs.precision != "bf16",
    )
    return made


def _notes(zero: Zero, precision: str) -> tuple[str, ...]:
    """Sentences for the user on how ZeRO sharded a model."""
    said = [f"DeepSpeed {library().__version__}: ZeRO {zero.stage} with its defaults, buckets of 5e8 numbers"]
    if precision in AUTOCAST_DTYPES:
        section = next(iter(PRECISION_SECTIONS[precision]))
        said.append(
            f"{precision} is DeepSpeed's {section}, without autocast, which also keeps weights in float32"
        )
    elif precision in PRECISION_SECTIONS:
        said.append(f"{precision} is DeepSpeed's bf16 with master weights and optimizer states in bfloat16")
    return tuple(said)
