"""Makes `torch.cuda` and `torch.accelerator` answer a script as a large GPU without allocations would.

`fake_gpu` answers the calls that models make. Scripts also ask for the card's name and memory, the
allocator's statistics, and random states. These are not known in a prediction, so the answers are those of an
80 GiB card that nothing has used yet.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from autofit_workers.pytorch.cuda import (
    CURRENT_ACCELERATOR,
    EXCHANGE_DEVICE,
    MEMORY_HISTORY,
    MEMORY_SNAPSHOT,
)
from autofit_workers.pytorch.pytree import tree_map
from autofit_workers.scripts.ranks import Ranks
from autofit_workers.tracing.fake import addresses
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.properties import card_properties
from autofit_workers.tracing.scripts import nvidia_smi
from autofit_workers.tracing.scripts.devices import ScriptDevices

_TOTAL_BYTES = 80 * 1024**3
_NCCL = (2, 27, 3)  # newer than any version scripts require, such as 2.10 for bfloat16

_ZEROS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "utilization",
    "_exchange_device",
    "_maybe_exchange_device",
)
_NOTHING = (
    "ipc_collect",
    "manual_seed",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
)


def install(architecture: str, ranks: Ranks, devices: ScriptDevices) -> None:
    """Replaces functions of `torch.cuda` and `torch.accelerator` for a script, in this process for good.

    Args:
        architecture: architecture of the card, such as `sm_80`.
        ranks: ranks of the script; the machine seems to have a GPU for each local rank.
        devices: ends the script if it selects a GPU that is not its rank's.
    """
    properties = card_properties(architecture, _TOTAL_BYTES)

    def only_card(device: Any = None) -> None:
        index = torch.device("cuda", device).index if isinstance(device, int) else None
        index = torch.device(device).index if isinstance(device, str | torch.device) else index
        devices.require_own(index)

    cuda: Any = torch.cuda
    # A separate function for each name: `torch.compile` refuses a function under two names.
    for each in _ZEROS:
        setattr(cuda, each, _answering(lambda: 0))
    for each in _NOTHING:
        setattr(cuda, each, _answering(lambda: None))
    cuda.set_device = only_card
    cuda.device_count = _answering(lambda: ranks.num_local)
    cuda.is_initialized = _answering(lambda: True)
    cuda.get_device_properties = _answering(lambda: properties)
    cuda.get_device_name = _answering(lambda: properties.name)
    cuda.get_device_capability = _answering(lambda: (properties.major, properties.minor))
    cuda.mem_get_info = _answering(lambda: (_TOTAL_BYTES, _TOTAL_BYTES))
    cuda.memory_stats = _answering(lambda: collections.defaultdict(int))
    cuda.memory_summary = _answering(str)
    cuda.nccl.version = _answering(lambda: _NCCL)
    cuda.initial_seed = _answering(torch.initial_seed)
    cuda.graph_pool_handle = cuda.graphs.graph_pool_handle = devices.refuse_graphs
    cuda.CUDAGraph.__new__ = devices.refuse_graphs
    for module in (cuda, cuda.random):
        module.get_rng_state = _answering(torch.get_rng_state)
        module.get_rng_state_all = _answering(lambda: [torch.get_rng_state()])
    for other in (torch.xpu, torch.mtia):  # `torch.manual_seed` calls them, and they queue every call
        for each in ("manual_seed", "manual_seed_all"):
            if hasattr(other, each):
                setattr(other, each, _answering(lambda: None))
    _answer_as_accelerator(lambda: ranks.num_local, only_card)
    nvidia_smi.install(properties.name, _TOTAL_BYTES, lambda: ranks.num_local)
    _tell_no_profiler()
    _load_without_gpu()
    _keep_scale()
    addresses.install()


def _answer_as_accelerator(num_gpus: Callable[[], int], only_card: Callable[..., None]) -> None:
    """Makes `torch.accelerator` report the fake GPUs, and delegate streams to `torch.cuda`."""
    accelerator: Any = torch.accelerator
    kind = torch.device("cuda")  # no index, as PyTorch's own answer
    for current in CURRENT_ACCELERATOR:
        current.replace(_answering(lambda: kind))
    accelerator.current_accelerator = _answering(lambda: kind)
    accelerator.is_available = _answering(lambda: True)
    accelerator.device_count = _answering(num_gpus)
    for each in ("current_device_index", "memory_allocated", "max_memory_allocated", "memory_reserved"):
        setattr(accelerator, each, _answering(lambda: 0))
    accelerator.reset_peak_memory_stats = _answering(lambda: None)
    accelerator.empty_cache = _apart(torch.cuda.empty_cache)
    accelerator.set_device_index, accelerator.set_device_idx = _apart(only_card), _apart(only_card)
    for exchange in EXCHANGE_DEVICE:
        exchange.replace(_answering(lambda: 0))
    accelerator.synchronize = _apart(torch.cuda.synchronize)
    accelerator.set_stream = _apart(torch.cuda.set_stream)
    accelerator.current_stream = _apart(torch.cuda.current_stream)


def _tell_no_profiler() -> None:
    """Makes marks for NVIDIA's profilers, and the recording of the allocator's history, do nothing.

    A PyTorch without CUDA raises in them. A history that is asked for is empty.
    """
    cuda: Any = torch.cuda
    for each in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, each, _answering(lambda: 0))
    autograd_profiler: Any = torch.autograd.profiler
    autograd_profiler.emit_nvtx = _answering(contextlib.nullcontext)
    start, stop = _answering(lambda: 0), _answering(lambda: 0)
    cuda.profiler.start, cuda.profiler.stop = start, stop
    cuda.cudart = _answering(lambda: SimpleNamespace(cudaProfilerStart=start, cudaProfilerStop=stop))
    MEMORY_HISTORY.replace(_answering(lambda: None))
    MEMORY_SNAPSHOT.replace(_answering(lambda: {"segments": [], "device_traces": []}))
    cuda.memory_snapshot = cuda.memory.memory_snapshot = _answering(list)


def _load_without_gpu() -> None:
    """Makes `torch.load(…, map_location="cuda")` load on the CPU and then move tensors to the fake GPU."""
    package: Any = torch
    load = torch.load

    def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        to_gpu = isinstance(map_location, str | torch.device) and torch.device(map_location).type == "cuda"
        found = load(file, "cpu" if to_gpu or map_location is None else map_location, *args, **kwargs)
        if not to_gpu:
            return found
        return tree_map(lambda leaf: leaf.to(GPU) if isinstance(leaf, torch.Tensor) else leaf, found)

    package.load = loaded


def _keep_scale() -> None:
    """Makes `GradScaler.get_scale` return the initial scale, which the few traced steps would not change."""
    scaler: Any = torch.amp.GradScaler
    scaler.get_scale = lambda self: self._init_scale if self.is_enabled() else 1.0


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """New function that does the same, as `torch.compile` refuses a function under two names."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


def _answering(answer: Callable[[], Any]) -> Callable[..., Any]:
    def answered(*_args: object, **_kwargs: object) -> Any:
        return answer()

    return answered
