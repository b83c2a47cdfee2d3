"""Replaces launches of Triton kernels, which do nothing in a prediction.

Libraries of Triton kernels (Liger, unsloth, flash-linear-attention, …) allocate the tensors that a kernel
writes in Python, with PyTorch, before the launch. So their Python code is run and only the launch is skipped;
nothing has to be known about the kernel. The values that it writes are unknown.

    Triton installed        `install` replaces its launch, its timing of kernels, and its driver
    Triton not installed    `stand_ins/triton_*.py` is imported in its place, with the same replacements;
                            PyTorch's compiler, which would generate kernels, finds no Triton

Autotuning a kernel takes memory at the first call: to empty the L2 cache, `do_bench` allocates a buffer of
256e6 bytes (256 MiB since Triton 3.2), which stays reserved after it is freed. Sources: Triton 2.1 and 3.0 to
3.7, runtime/autotuner.py, testing.py and backends/nvidia/driver.py. Not predicted: scratch memory that a
compiled kernel requests through `triton.set_allocator`, for example for tensor descriptors made on the
device.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.triton_kernels import (
    COMPILER_LOOKS_FOR_TRITON,
    custom_ops,
    library,
    triton_search,
)
from autofit_workers.spec.versions import parse_release
from autofit_workers.tracing.kernels.following import kernel_of
from autofit_workers.tracing.kernels.stand_ins.finder import StandIn, StandInFinder
from autofit_workers.workload.libraries.finders import ExecutingFinder, when_imported

_HERE = "autofit_workers.tracing.kernels.stand_ins"
_WIDER_FLUSH_SINCE = _HOOKS_TAKE_NAMES_SINCE = (3, 2)
_LANGUAGE = (
    "language",
    "language.core",
    "language.extra",
    "language.extra.cuda",
    "language.extra.cuda.libdevice",
    "language.extra.hip",
    "language.extra.hip.libdevice",
    "language.extra.libdevice",
    "language.math",
    "language.random",
    "language.semantic",
    "language.standard",
)
_REST = (
    "backends",
    "backends.compiler",
    "compiler",
    "compiler.compiler",
    "compiler.errors",
    "errors",
    "knobs",
    "runtime",
    "runtime.autotuner",
    "runtime.cache",
    "runtime.driver",
    "runtime.errors",
    "runtime.jit",
    "testing",
    "tools",
    "tools.tensor_descriptor",
)
TRITON = StandIn(
    package="triton",
    distribution="triton",
    version="3.7.0",
    modules={
        "triton": f"{_HERE}.triton_runtime",
        **{f"triton.{name}": f"{_HERE}.triton_language" for name in _LANGUAGE},
        **{f"triton.{name}": f"{_HERE}.triton_runtime" for name in _REST},
    },
)
# Compiled modules that libraries of Triton kernels import as well.
_COMPILED = tuple(
    StandIn(package=name, distribution=name.replace("_", "-"), version="0", modules={name: f"{_HERE}.{ours}"})
    for name, ours in (("selective_scan_cuda", "selective_scan"), ("causal_conv1d_cuda", "causal_conv1d"))
)
_finder = StandInFinder()
_launched: dict[str, None] = {}  # names of kernels that the current program launched
_tuned: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def install() -> None:
    """Makes kernel launches do nothing, and Triton importable, in this process for good."""
    if hasattr(library, "wrap_triton_enabled_default"):
        library.wrap_triton_enabled_default = False  # call kernels directly, without tracing them
    for compiled in _COMPILED:
        if not compiled.is_installed:
            _finder.offer(compiled)
    if TRITON.is_installed:
        when_imported("triton.runtime.jit", _leave_out_launches)
        when_imported("triton.runtime.autotuner", _leave_out_timing)
        when_imported("triton.runtime.driver", _replace_driver)
        return
    _let_pytorch_remember_that_there_is_none()
    _finder.offer(TRITON)
    sys.meta_path.insert(0, ExecutingFinder(COMPILER_LOOKS_FOR_TRITON, _execute_without_triton))


def begin_program() -> None:
    """Forgets which kernels an earlier script or workload in this process launched and autotuned."""
    _launched.clear()
    for tuner in _tuned:
        tuner.cache.clear()
    _tuned.clear()


def notes() -> tuple[str, ...]:
    """Note for the user that names the Triton kernels launched; empty if there were none."""
    if not _launched:
        return ()
    names = ", ".join(list(_launched)[:3]) + (", …" if len(_launched) > 3 else "")
    return (
        f"kernels of Triton ({names}) do nothing here: what Python makes for them is followed, and values "
        "that they write are made up",
    )


def body_of(func: OpOverload) -> Callable[..., Any] | None:
    """Python function of an operator that launches kernels of Triton; None for other operators.

    Such are those made by `torch.library.triton_op`, and those that are registered to run as they are.
    """
    name = func._schema.name
    kernel = kernel_of(func)
    if kernel is not None and kernel.runs_python and name in custom_ops.OPDEFS:
        own: Callable[..., Any] = custom_ops.OPDEFS[name]._init_fn
        return own
    if name not in getattr(library, "triton_ops_to_kernels", ()):
        return None
    body: Callable[..., Any] = custom_ops.OPDEFS[name]._abstract_fn
    return body


class Launch:
    """Stand-in for the compiled kernel that a launch returns, with made-up properties."""

    n_regs = 32
    n_spills = 0
    shared = 0
    num_warps = 4
    metadata = SimpleNamespace(shared=0, num_warps=4, num_stages=1, num_ctas=1, target=None)
    asm: dict[str, str] = {}  # noqa: RUF012 - there is none

    def _init_handles(self) -> None:
        """Does nothing, as there is no compiled kernel to load."""

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return lambda *_args, **_options: None

    run = __getitem__


def launch(kernel: Any, *_args: Any, **_options: Any) -> Launch:
    """Replacement for `JITFunction.run` that launches nothing and only records the kernel's name."""
    note_launch(getattr(kernel.fn, "__name__", "kernel"))
    return Launch()


def note_launch(name: str) -> None:
    """Records the name of a kernel that the program launched."""
    _launched[name] = None


def timed(call: Callable[[], Any]) -> float:
    """Calls a function twice, as `do_bench` does to time it, and returns a made-up 1 millisecond.

    During the second call the buffer that empties the L2 cache is allocated.
    """
    call()
    flushed = torch.empty(_flushed_bytes() // 4, dtype=torch.int, device="cuda")
    call()
    del flushed
    return 1.0


def tune(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Replacement for `Autotuner._bench` that runs the hooks of `config`, and returns equal made-up times."""
    _tuned.add(tuner)
    given = {**tuner.nargs, **meta, **config.kwargs}
    told = given if _release() >= _HOOKS_TAKE_NAMES_SINCE else args

    def call() -> None:
        if config.pre_hook:
            config.pre_hook(given)
        if not hasattr(tuner, "pre_hook"):  # before 3.0
            tuner.hook(told)
            return
        tuner.pre_hook(told)
        tuner.post_hook(told, exception=None)

    if getattr(tuner, "use_cuda_graph", False):  # allocates no buffer for the L2 cache
        call()
        return [1.0] * 3
    return [timed(call)] * 3


class Driver:
    """Stand-in for Triton's GPU driver, which describes the fake GPU."""

    binary_ext = "cubin"

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def get_current_target(self) -> Any:
        properties = torch.cuda.get_device_properties(0)
        return SimpleNamespace(backend="cuda", arch=10 * properties.major + properties.minor, warp_size=32)

    def get_current_device(self) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_capability(self, _device: Any = None) -> tuple[int, int]:
        capability: tuple[int, int] = torch.cuda.get_device_capability()
        return capability

    def get_current_stream(self, _device: Any = None) -> int:
        return 0

    def set_current_device(self, _device: Any) -> None:
        """Does nothing, as there is only one device."""

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, **_options: [timed(call)] * 3

    def _properties(self, _device: Any = None) -> dict[str, int]:
        """Properties of the card by the names in Triton's backends/nvidia/driver.c."""
        properties: Any = torch.cuda.get_device_properties(0)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
        }


def _flushed_bytes() -> int:
    return 256 * 1024**2 if _release() >= _WIDER_FLUSH_SINCE else 256_000_000


def _release() -> tuple[int, int]:
    return parse_release(sys.modules["triton"].__version__)


def _leave_out_launches(module: Any) -> None:
    module.JITFunction.run = launch
    if hasattr(module.JITFunction, "_make_launcher"):  # Triton before 3.0 makes a launcher for each kernel
        module.JITFunction._make_launcher = lambda kernel: (
            lambda *args, **options: launch(kernel, *args, **options)
        )


def _leave_out_timing(module: Any) -> None:
    module.Autotuner._bench = tune


def _replace_driver(module: Any) -> None:
    if hasattr(module.driver, "set_active"):
        module.driver.set_active(Driver())


def _execute_without_triton(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    with _finder.hidden(TRITON.package):
        execute(module)


def _let_pytorch_remember_that_there_is_none() -> None:
    """Makes PyTorch cache that Triton is not installed, so that it does not find the stand-in later."""
    for name in ("has_triton_package", "get_triton_version", "has_triton"):
        if hasattr(triton_search, name):
            getattr(triton_search, name)()
