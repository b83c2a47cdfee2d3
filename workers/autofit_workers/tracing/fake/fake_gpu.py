"""Fake GPU: tensors on `cuda:0` that have shapes and storages, but no data.

PyTorch's `FakeTensorMode` makes such tensors on any machine, but training with them needs a GPU, because the
C++ autograd engine asks for the device's guard and stream. So C++ code is told that the tensors are on
`xla:0`. C++ asks for a tensor's device through the operator `prim::device`, which a dispatch mode may answer;
Python reads an attribute and keeps seeing `cuda:0`. XLA is the only device type besides CUDA whose tensors
CUDA autocast accepts and which the engine does not treat as an accelerator. As its device guard the no-op
guard of the device `meta` is copied in libc10's registry.

`install` patches the process for good, so predictions run in a child process. All of this depends on private
parts of PyTorch: `self_test` checks that it still works, and `autofit doctor` shows the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from autofit_workers.pytorch import device_guards
from autofit_workers.pytorch.cuda import EXCHANGE_DEVICE
from autofit_workers.pytorch.fake_tensors import INIT_GPU_CONTEXT, FakeTensor, only_lift_cpu_tensors
from autofit_workers.pytorch.operators import SELECT_CONV_BACKEND, HigherOrderOperator, OpOverload
from autofit_workers.pytorch.training import FOREACH_DEVICES, FOREACH_TYPES
from autofit_workers.tracing.fake import (
    composites,
    fake_device,
    generators,
    managed_memory,
    pinned,
    streams,
    tensor_types,
)
from autofit_workers.tracing.fake.devices import GPU, NamedDevices
from autofit_workers.tracing.fake.fake_device import FakeDeviceMode, has_wrapper
from autofit_workers.tracing.fake.layouts import as_cudnn_returns
from autofit_workers.tracing.fake.libraries import compiled_steps
from autofit_workers.tracing.fake.properties import card_properties
from autofit_workers.tracing.fake.running import OperatorObserver
from autofit_workers.tracing.kernels import extensions, run_time
from autofit_workers.tracing.values.known import as_made_up, copied_to_host, is_large_new, is_made_up, on_host
from autofit_workers.workload.libraries.finders import ExecutingFinder, when_imported

TOLD = torch.device("xla:0")  # device that C++ sees for a tensor on the fake GPU
_META = torch.device("meta")
_CPU = torch.device("cpu")

_LOOKING_FOR_KERNELS = ("bitsandbytes", "xformers", "apex", "transformer_engine", "torchao")
# By module of a library, the function that replaces its calls of CUDA's driver and its compiled functions.
_REPLACEMENTS: dict[str, Callable[[Any], None]] = {
    "bitsandbytes.functional": managed_memory.replace_in_bitsandbytes,
    "torch.utils.cpp_extension": extensions.replace_load,
    "torchao.optim.adam": compiled_steps.replace_in_torchao,
}
_ASKED_OF = "sm_80"
_TOTAL_BYTES = 80 * 1024**3
_installed: list[Any] = []


class FakeGpuMode(FakeDeviceMode):
    """Dispatch mode that runs operators on fake GPU tensors, and operators on CPU tensors for real.

    CPU tensors stay real because model constructors and data preparation read their values.

    Attributes:
        offloads: whether large new CPU tensors are fake too; set for a step that keeps memory of the GPU on
            the host.
        num_cards: number of GPUs of the process. A larger GPU index, which belongs to another rank, is taken
            for `cuda:0`.
    """

    offloads = False
    num_cards = 1
    supports_higher_order_operators = True

    def __init__(self, observer: OperatorObserver, devices: NamedDevices | None = None) -> None:
        super().__init__(observer, GPU, as_cudnn_returns, devices)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return device_for_cpp(args[0])
        if has_wrapper(types):
            return NotImplemented
        if isinstance(func, HigherOrderOperator):
            return self._run(func, args, kwargs)
        device: Any = kwargs.get("device")
        on_gpu = device is not None and device.type in ("cuda", "xla")
        if on_gpu:
            kwargs = {**kwargs, "device": self._card(device)}
        if kwargs.get("generator") is not None:
            generators.require_same_device(kwargs["generator"], GPU if on_gpu or _is_on_gpu(args) else _CPU)
        if not on_gpu and not any(issubclass(t, FakeTensor) for t in types):
            return self._on_host_alone(func, args, kwargs)
        if func is torch.ops.aten._to_copy.default and _is_phantom_copy(args[0], kwargs):
            func, kwargs = torch.ops.aten.alias.default, {}
        if (copy := _copied_to_host(func, args, kwargs)) is not None:
            if not kwargs.get("non_blocking"):
                streams.host_reads()
            return self._kept_on_host(copy, kwargs)
        result = self._run(func, args, kwargs)
        is_to_host = func is torch.ops.aten._to_copy.default and kwargs.get("device") == _CPU
        return self._kept_on_host(result, kwargs) if is_to_host else result

    def _on_host_alone(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.offloads and is_large_new(func, args):
            with self.fake_mode:
                return func(*args, **kwargs)
        if kwargs.get("pin_memory"):  # nothing can be pinned without a GPU
            return pinned.pinned(on_host(func, args, {**kwargs, "pin_memory": False}))
        return on_host(func, args, kwargs)

    def moved(self, buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
        return buffer.to(device)

    def _kept_on_host(self, copy: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """Returns `copy`, a tensor copied from GPU to CPU; counts its bytes as pinned memory if offloaded.

        PyTorch's `_to_copy` pins the target of a non-blocking copy to the CPU.
        """
        return pinned.pinned(copy) if self.offloads and kwargs.get("non_blocking") else copy

    def _card(self, device: torch.device) -> torch.device:
        is_another = device.index is not None and 0 < device.index < self.num_cards
        return torch.device(GPU.type, device.index) if is_another else GPU


def device_for_cpp(tensor: FakeTensor) -> torch.device:
    """Device that C++ is told for a fake tensor."""
    if tensor.fake_mode.in_kernel_invocation:
        return _META
    device = tensor.fake_device
    return torch.device(TOLD.type, device.index) if device.type == "cuda" else device


def _is_on_gpu(args: tuple[Any, ...]) -> bool:
    return any(isinstance(each, FakeTensor) and each.fake_device.type == "cuda" for each in args)


def _copied_to_host(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Real CPU tensor that a copy from GPU to CPU returns.

    Its values are those of the GPU tensor if they are known, else made up.

    Returns:
        The tensor; None for any other operator, and for a tensor too large to be made real.
    """
    if func is torch.ops.aten.copy_.default and not isinstance(args[0], FakeTensor):
        target, source = args[:2]
        values = copied_to_host(source)
        if values is not None:
            target.copy_(values)
        return as_made_up(target) if values is None or is_made_up(values) else target
    if func is not torch.ops.aten._to_copy.default or kwargs.get("device") != _CPU:
        return None
    if not isinstance(args[0], FakeTensor) or args[0].fake_device.type == "cpu":
        return None
    return copied_to_host(args[0], kwargs.get("dtype"))


def _is_phantom_copy(tensor: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether PyTorch copies a fake tensor only because its C++ code sees the device `xla`.

    A real GPU would not call `_to_copy` for `tensor`, as neither device, dtype nor layout changes.
    """
    return (
        isinstance(tensor, FakeTensor)
        and tensor.fake_device.type == "cuda"
        and kwargs.get("device", tensor.fake_device) == tensor.fake_device
        and kwargs.get("dtype") in (None, tensor.dtype)
        and kwargs.get("layout") in (None, tensor.layout)
        and kwargs.get("memory_format") in (None, torch.preserve_format)
    )


def install() -> None:
    """Patches PyTorch in this process, for good, so that models can train on fake CUDA tensors.

    Raises:
        RuntimeError: the registry of device guards is not found in this release of PyTorch.
    """
    if _installed:
        return
    fake_device.install()
    device_guards.use_guard_of_meta(device_guards.CUDA, device_guards.XLA)
    _pretend_that_cuda_is_available()
    _let_optimizers_take_fake_tensors()
    _select_conv_backends_without_a_card()
    generators.install(GPU)
    tensor_types.install(GPU)
    streams.install()
    # Without this, `torch.tensor` moves its result to the device without calling a dispatch mode.
    only_lift_cpu_tensors(True)
    _installed.append(composites.register())
    sys.meta_path.insert(0, ExecutingFinder(_LOOKING_FOR_KERNELS, _execute_unseen))
    for name, replace in _REPLACEMENTS.items():
        when_imported(name, replace)


def _execute_unseen(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Executes a library's module with no GPU visible, as its import would else call CUDA's driver."""
    with unseen():
        execute(module)


@contextmanager
def unseen() -> Iterator[None]:
    """Context in which `torch.cuda.is_available()` is False, for imports that look for GPU kernels."""
    cuda: Any = torch.cuda
    before = cuda.is_available
    cuda.is_available = lambda: False
    try:
        yield
    finally:
        cuda.is_available = before


def _select_conv_backends_without_a_card() -> None:
    """Makes PyTorch choose a convolution's library as for CPU tensors, since there is no GPU to query.

    A build with CUDA else asks the card whether it has bfloat16 or cuDNN's depthwise kernels (`use_cudnn` and
    `use_cudnn_depthwise` in aten/src/ATen/native/Convolution.cpp), and there is none. The library decides
    only on the memory format of the result, which `as_cudnn_returns` sets; shapes are checked as ever.
    """
    select: Callable[..., Any] = SELECT_CONV_BACKEND.get()

    def on_cpu(value: Any) -> Any:
        return torch.empty_like(value, device=_CPU) if isinstance(value, FakeTensor) else value

    def selected(*args: Any, **kwargs: Any) -> Any:
        return select(*map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()})

    SELECT_CONV_BACKEND.replace(selected)


def _pretend_that_cuda_is_available() -> None:
    """Replaces functions of `torch.cuda` so that it reports one GPU and makes no CUDA context."""
    cuda: Any = torch.cuda
    for name in (
        "_lazy_init",
        "init",
        "set_device",
        "manual_seed_all",
        "set_rng_state",
    ):
        # A separate function each: `torch.compile` refuses a function under two names.
        setattr(cuda, name, _doing_nothing())
    cuda.is_available = lambda: True
    cuda.is_bf16_supported = lambda including_emulation=True: including_emulation or True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    for exchange in EXCHANGE_DEVICE:
        exchange.replace(lambda _index: 0)
    cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()  # the CPU's in place of the GPU's
    # Models and libraries ask for the capability; one trace serves all architectures, so one card answers.
    properties = card_properties(_ASKED_OF, _TOTAL_BYTES)
    cuda.get_device_properties = lambda *_args, **_kwargs: properties
    cuda.get_device_name = lambda *_args, **_kwargs: properties.name
    cuda.get_device_capability = lambda *_args, **_kwargs: (properties.major, properties.minor)
    cuda.amp.common.amp_definitely_not_available = lambda: False
    # Both would create a CUDA context where there is a GPU.
    INIT_GPU_CONTEXT.replace(_doing_nothing())
    fake_tensor_type: Any = FakeTensor
    fake_tensor_type.is_cuda = property(lambda self: self.device.type == "cuda")
    fake_tensor_type.type = _type_of
    tensor_type: Any = torch.Tensor
    pinned.install()
    run_time.install()
    share = tensor_type.share_memory_
    # For a GPU tensor `share_memory_` does nothing.
    tensor_type.share_memory_ = lambda self: self if isinstance(self, FakeTensor) else share(self)


def _type_of(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    """Result of `Tensor.type` for a fake GPU tensor: `torch.cuda.FloatTensor`, not C++'s `torch.xla`."""
    found = torch.Tensor.type(tensor, *args, **kwargs)
    return found.replace(f"torch.{TOLD.type}.", "torch.cuda.") if isinstance(found, str) else found


def _doing_nothing() -> Callable[..., None]:
    def nothing(*_args: object, **_kwargs: object) -> None:
        return None

    return nothing


def _let_optimizers_take_fake_tensors() -> None:
    """Makes optimizers and gradient clipping take their foreach path for fake tensors.

    Gradient clipping decides by the device type that C++ sees.
    """
    for types in FOREACH_TYPES:
        types.append(FakeTensor)
    devices = FOREACH_DEVICES.get()
    FOREACH_DEVICES.replace(lambda: [*devices(), TOLD.type])
