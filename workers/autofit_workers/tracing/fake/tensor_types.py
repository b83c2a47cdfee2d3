"""Legacy constructors of GPU tensors, such as `torch.cuda.FloatTensor` and `tensor.new`.

They are also `torch.Tensor([1.0])` if the default tensor type is a GPU type. These constructors are C++ code
that does not call dispatch modes (`legacy_tensor_generic_ctor_new` of torch/csrc/utils/tensor_new.cpp), and
CUDA types raise errors in a build without CUDA, so they are replaced by Python code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.fake_tensors import FakeTensor, FakeTensorMode

_TYPES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
    "ShortTensor": torch.int16, "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip
_CUDA = "torch.cuda."


class _TensorType(type):
    """Stand-in for `torch.cuda.FloatTensor` and its like, as constructor and for `isinstance`."""

    dtype: torch.dtype
    device: torch.device

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        if device is not None and torch.device(device).type != cls.device.type:
            raise RuntimeError(
                f"legacy constructor expects device type: cuda but device type: {device} was passed"
            )
        if args and isinstance(args[0], Tensor) and not isinstance(args[0], cls):
            raise TypeError(f"expected {_CUDA}{cls.__name__} (got {args[0].type()})")
        return constructed(cls.dtype, cls.device, args)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def constructed(dtype: torch.dtype, device: torch.device, args: tuple[Any, ...]) -> Tensor:
    """Tensor that a legacy constructor returns for `args`: sizes, a sequence of values, or a tensor."""
    if args and isinstance(args[0], Tensor) and (args[0].dim() or len(args) == 1):
        return args[0].detach()
    if args and isinstance(args[0], torch.Size):
        return torch.empty(args[0], dtype=dtype, device=device)
    if len(args) == 1 and hasattr(args[0], "__iter__"):
        return torch.tensor(args[0], dtype=dtype, device=device)
    return torch.empty(tuple(map(operator.index, args)) or (0,), dtype=dtype, device=device)


def _sparse_type(dtype: torch.dtype, gpu: torch.device) -> Callable[..., Tensor]:
    """Stand-in for a constructor such as `torch.cuda.sparse.FloatTensor(indices, values, size)`."""

    def made(*parts: Any) -> Tensor:
        return torch.sparse_coo_tensor(*parts, dtype=dtype, device=gpu)

    return made


def install(gpu: torch.device) -> None:
    """Makes the types `torch.cuda.*Tensor` construct fake GPU tensors, in this process for good."""
    for name, dtype in _TYPES.items():
        members = {"dtype": dtype, "device": gpu, "__module__": "torch.cuda"}
        setattr(torch.cuda, name, _TensorType(name, (), members))
        setattr(torch.cuda.sparse, name, _sparse_type(dtype, gpu))
    _let_one_be_the_default(gpu)


def _let_one_be_the_default(gpu: torch.device) -> None:
    """Lets `torch.set_default_tensor_type` accept a `torch.cuda` type."""
    package, tensor, fake = torch, Tensor, FakeTensor  # type: Any, Any, Any
    set_type: Any = torch.set_default_tensor_type
    make, initialize = tensor.__new__, fake.__init__
    is_of_gpu = False

    def made(*args: Any, **kwargs: Any) -> Any:
        """Replacement for `torch.Tensor.__new__` that makes a tensor of the default type.

        Subclasses are made as before. It takes `*args` because PyTorch's compiler compares the names of
        parameters with a function of its own, if there are names.
        """
        kind, *rest = args
        if kind is not Tensor or torch.device(kwargs.get("device", gpu)).type != gpu.type:
            return make(*args, **kwargs)
        return constructed(torch.get_default_dtype(), gpu, tuple(rest))

    def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
        """Skips `__init__`, which Python calls, for a fake tensor that `torch.Tensor(…)` has already made."""
        if args and isinstance(args[0], FakeTensorMode):
            initialize(self, *args, **kwargs)

    def set_default_tensor_type(kind: Any) -> None:
        """Sets the type of new tensors, as PyTorch's function, which refuses `torch.cuda` types here."""
        nonlocal is_of_gpu
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        was_of_gpu, is_of_gpu = is_of_gpu, name.startswith(_CUDA)
        if is_of_gpu:
            torch.set_default_dtype(_TYPES[name.rpartition(".")[2]])
            torch.set_default_device(gpu)
            tensor.__new__, fake.__init__ = staticmethod(made), initialized
            return
        set_type(kind)
        if was_of_gpu:
            torch.set_default_device(None)
            tensor.__new__, fake.__init__ = make, initialize

    package.set_default_tensor_type = set_default_tensor_type
