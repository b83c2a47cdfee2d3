"""Setting that is written into files of other tools: one configuration, and how it is started."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import ALONE, Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStart:
    """Start of a training script: its path and arguments, and what takes the batch size.

    Attributes:
        words: path of the script and its arguments, with the batch size in them.
        batch_argument: argument that takes the batch size; None if another way is used.
        batch_variable: environment variable that takes the batch size; None if another way is used.
    """

    words: tuple[str, ...]
    batch_argument: str | None = None
    batch_variable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One configuration, as it is written into the files of trainers and launchers.

    Attributes:
        batch_size: samples a batch of one rank; of a pipeline, of a microbatch.
        knobs: knob values: precision, optimizer, checkpointing and so on.
        accumulation: number of batches whose gradients an optimizer step accumulates.
        parallel: how several ranks train together.
        num_nodes: machines over which the ranks are spread.
        device_kind: `cuda` or `cpu`.
        torch_release: release of PyTorch that will run; None for the installed one.
        script: how the script is started; None without one.
        trains: whether it trains; else it only runs forward passes.
    """

    batch_size: int
    knobs: Knobs
    accumulation: int = 1
    parallel: Parallel = ALONE.parallel
    num_nodes: int = 1
    device_kind: str = GPU_KIND
    torch_release: str | None = None
    script: ScriptStart | None = None
    trains: bool = True

    @property
    def num_ranks(self) -> int:
        """Number of processes that train together; 1 if one process has its layers on several cards."""
        return 1 if self.parallel.is_one_process else max(1, self.parallel.num_ranks)

    @property
    def ranks_per_node(self) -> int:
        return math.ceil(self.num_ranks / self.num_nodes)

    @property
    def loaded(self) -> int:
        """Samples that the data loader of a rank makes a batch of: in a pipeline all microbatches."""
        return self.batch_size * self.parallel.num_microbatches

    @property
    def samples_per_step(self) -> int:
        """Samples of an optimizer step, of all ranks and accumulated batches."""
        return self.batch_size * self.accumulation * self.parallel.num_batches

    @property
    def on_gpu(self) -> bool:
        return self.device_kind == GPU_KIND
