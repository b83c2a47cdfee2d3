"""A GPU that is not there: tensors that say `cuda:0`, have shapes and storages, and no data.

PyTorch's `FakeTensorMode` makes such tensors on any machine, but training with them needs a GPU:
the C++ autograd engine asks for the device's guard and stream. So C++ is told another device.
It asks for a tensor's device through the operator `prim::device`, which a dispatch mode may
answer; Python reads an attribute and keeps seeing `cuda:0`. The answer is `xla:0` because that is
the one device type besides CUDA whose tensors CUDA autocast accepts, and which the engine does
not take for an accelerator. Its device guard, a no-op, is the `meta` guard, copied in libc10's
registry.

`install` changes the process for good, so predictions run in a child of their own. All of it is
private to PyTorch: `self_test` says whether it still works, and `autofit doctor` shows it.
"""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from workers.predict import composites, dynamo
from workers.predict.devices import GPU, NamedDevices
from workers.predict.shapes import ShapeCache

_ANSWER = torch.device("xla:0")
_META = torch.device("meta")
_GUARD_REGISTRY_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"
# c10/core/DeviceType.h; the numbers are part of PyTorch's serialization format and do not move.
_DEVICE_TYPE_CUDA, _DEVICE_TYPE_XLA, _DEVICE_TYPE_META = 1, 9, 14

OperatorObserver = Callable[[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any], Any], None]

_installed: list[Any] = []


class FakeGpuMode(TorchDispatchMode):
    """Runs what touches the GPU on fake tensors, and everything else for real on the CPU.

    CPU tensors stay real so that constructors and data preparation that read values work.

    Args:
        observer: called after every operator on fake tensors with the operator, its arguments
            and its result.
    """

    def __init__(self, observer: OperatorObserver) -> None:
        super().__init__()
        self.fake_mode = FakeTensorMode()
        self._shapes = ShapeCache(self.fake_mode)
        self._observer = observer
        self._named_devices = NamedDevices()
        self.kept: dict[str, torch.Tensor] = {}  # what libraries keep for the life of a process, by name

    def __enter__(self) -> Self:
        self._named_devices.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._named_devices.__exit__(*exception)

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return self._device_for_cpp(args[0])
        device = kwargs.get("device")
        on_gpu = device is not None and device.type in ("cuda", "xla")
        if on_gpu:
            kwargs = {**kwargs, "device": GPU}
        elif not any(issubclass(t, FakeTensor) for t in types):
            return func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default and _is_phantom_copy(args[0], kwargs):
            func, kwargs = torch.ops.aten.alias.default, {}
        args = self._without_real_tensors(args)
        if func in composites.WITH_TEMPORARIES:
            with self:
                return composites.WITH_TEMPORARIES[func](*args, **kwargs)
        result = self._shapes.run(func, args, kwargs)
        self._observer(func, args, kwargs, result)
        return result

    def _without_real_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """CPU tensors enter without their values: the fake mode would compute on small ones."""
        return tuple(
            self.without_values(arg)
            if isinstance(arg, torch.Tensor) and not isinstance(arg, FakeTensor)
            else [*self._without_real_tensors(tuple(arg))]
            if isinstance(arg, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in arg)
            else arg
            for arg in args
        )

    def without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake CPU tensor of the same shape (`FakeTensorMode.from_tensor` would bring the compiler)."""
        with self.fake_mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)

    def _device_for_cpp(self, tensor: FakeTensor) -> torch.device:
        if self.fake_mode.in_kernel_invocation:
            return _META
        return _ANSWER if tensor.fake_device.type == "cuda" else tensor.fake_device


def _is_phantom_copy(tensor: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether a GPU would return the tensor itself: C++ only copies because it was told `xla`."""
    return (
        isinstance(tensor, FakeTensor)
        and tensor.fake_device.type == "cuda"
        and kwargs.get("device", GPU) == GPU
        and kwargs.get("dtype") in (None, tensor.dtype)
        and kwargs.get("layout") in (None, tensor.layout)
        and kwargs.get("memory_format") in (None, torch.preserve_format)
    )


def install() -> None:
    """Prepares this process, for good, to train on fake CUDA tensors.

    Raises:
        RuntimeError: this PyTorch has no such device-guard registry.
    """
    if _installed:
        return
    dynamo.install()
    _use_the_meta_guard_for_cuda()
    _pretend_that_cuda_is_available()
    _let_optimizers_take_fake_tensors()
    _let_modules_convert_fake_parameters()
    _let_scalers_step_without_values()
    _let_initializers_leave_fake_parameters()
    # `torch.tensor` else moves what it made to the device where no dispatch mode sees it.
    torch._C._set_only_lift_cpu_tensors(True)
    _installed.append(composites.register())


def _use_the_meta_guard_for_cuda() -> None:
    libc10 = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        registry = (ctypes.c_void_p * (_DEVICE_TYPE_META + 1)).in_dll(libc10, _GUARD_REGISTRY_SYMBOL)
    except ValueError as error:
        raise RuntimeError(
            f"PyTorch {torch.__version__} keeps its device guards elsewhere; install a supported release "
            "(`autofit doctor` lists them) or measure instead of predicting"
        ) from error
    registry[_DEVICE_TYPE_CUDA] = registry[_DEVICE_TYPE_META]
    registry[_DEVICE_TYPE_XLA] = registry[_DEVICE_TYPE_META]


def _pretend_that_cuda_is_available() -> None:
    cuda: Any = torch.cuda
    for name in ("_lazy_init", "init", "synchronize", "empty_cache", "set_device", "manual_seed_all"):
        # Each its own: the compiler keeps rules by function, and refuses one that has two names.
        setattr(cuda, name, _doing_nothing())
    cuda.is_available = lambda: True
    cuda.is_bf16_supported = lambda including_emulation=True: including_emulation or True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_args: (8, 0)  # no code of ours, but many a model's, asks
    cuda.amp.common.amp_definitely_not_available = lambda: False
    # Both would create a CUDA context where there is a GPU.
    fake: Any = fake_tensor
    fake.init_gpu_context = _doing_nothing()
    fake_tensor_type: Any = FakeTensor
    fake_tensor_type.is_cuda = property(lambda self: self.device.type == "cuda")
    tensor_type: Any = torch.Tensor
    tensor_type.pin_memory = lambda self, *_args: self


def _doing_nothing() -> Callable[..., None]:
    def nothing(*_args: object, **_kwargs: object) -> None:
        return None

    return nothing


def _let_optimizers_take_fake_tensors() -> None:
    """Without this the default optimizers would take their single-tensor path."""
    from torch.optim import optimizer

    supported: list[Any] = optimizer._foreach_supported_types
    supported.append(FakeTensor)


def _let_modules_convert_fake_parameters() -> None:
    """`Module.to` swaps fake parameters, and cannot where anything holds a weak reference."""
    utils: Any = torch.utils
    swap = utils.swap_tensors

    def swap_or_set(old: torch.Tensor, new: torch.Tensor) -> None:
        if isinstance(old, FakeTensor) and isinstance(new, FakeTensor):
            old.data = new
            old.fake_device = new.fake_device
        else:
            swap(old, new)

    utils.swap_tensors = swap_or_set


def _let_scalers_step_without_values() -> None:
    """A gradient scaler asks whether a gradient overflowed; on a fake GPU none does.

    The step with the optimizer in it is the one that needs the most memory. The question copies
    one number to the host and allocates nothing on the GPU; fused optimizers do not ask it.
    """
    scaler: Any = torch.amp.GradScaler

    def step(
        _self: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        _state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return optimizer.step(*args, **kwargs)

    scaler._maybe_opt_step = step


def _let_initializers_leave_fake_parameters() -> None:
    """The truncated normal draws until all values are within its bounds, and here are no values."""
    init: Any = torch.nn.init
    draw = init._no_grad_trunc_normal_

    def draw_unless_fake(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else draw(tensor, *args, **kwargs)

    init._no_grad_trunc_normal_ = draw_unless_fake


@contextmanager
def parameters_diverted(mode: FakeGpuMode) -> Iterator[None]:
    """Makes every parameter fake at the moment it is registered with a module.

    A model of billions of parameters then costs no memory, while constructors run for real.
    Parameters are diverted before their initializers touch them, which then do nothing.
    """
    module: Any = torch.nn.Module
    register = module.register_parameter
    diverted: Any = torch.utils.weak.WeakTensorKeyDictionary()

    def register_diverted(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if isinstance(param, torch.nn.Parameter) and not isinstance(
            param, (FakeTensor, UninitializedParameter)
        ):
            if param not in diverted:
                diverted[param] = _fake_parameter(mode, param, torch.device("cpu"))
            param = diverted[param]
        register(self, name, param)

    module.register_parameter = register_diverted
    try:
        yield
    finally:
        module.register_parameter = register


def move_to_gpu(mode: FakeGpuMode, model: torch.nn.Module) -> None:
    """Does what `model.to("cuda")` does to parameters and buffers, in the same order.

    `Module.to` itself swaps fake parameters and cannot where anything holds a weak reference.
    Parameters that several modules share stay shared.
    """
    moved: dict[int, torch.nn.Parameter] = {}
    keep_alive: list[torch.Tensor] = []
    for module in _children_first(model):
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.device == GPU:
                continue
            if id(parameter) not in moved:
                keep_alive.append(parameter)
                moved[id(parameter)] = _fake_parameter(mode, parameter, GPU)
            module._parameters[name] = moved[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(GPU)
        if isinstance(module, torch.nn.RNNBase):
            module._init_flat_weights()


def _children_first(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _fake_parameter(
    mode: FakeGpuMode, parameter: torch.nn.Parameter, device: torch.device
) -> torch.nn.Parameter:
    with torch.no_grad():
        if device == GPU:
            data = torch.empty_strided(
                parameter.size(), parameter.stride(), dtype=parameter.dtype, device=device
            )
        else:
            data = mode.without_values(parameter)
    fake = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
    for name, value in vars(parameter).items():
        vars(fake).setdefault(name, value)  # marks such as `no_weight_decay`
    return fake
