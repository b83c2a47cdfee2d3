"""Workloads whose operators are kernels of Triton, written like libraries of such kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton
from torch.utils._triton import has_triton, has_triton_package
from triton.language.extra.libdevice import rsqrt

from autofit_workers.workload.workload import Workload

NUM_FEATURES = 16
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def _double(x_ptr, y_ptr, num, DTYPE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < num).to(DTYPE)
    tl.store(y_ptr + places, rsqrt(x), mask=places < num)


_tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)],
    key=["num"],
    restore_value=["y_ptr"],
)(_double)
_worked_out = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["num"])})(_double)


class _Doubled(torch.autograd.Function):
    """A function that saves its input; its backward has a row of scratch for each multiprocessor."""

    @staticmethod
    def forward(context: Any, x: Tensor, launch: Callable[[Tensor, Tensor], None]) -> Tensor:
        y = torch.empty_like(x)
        launch(x, y)
        context.save_for_backward(x)
        return y

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = context.saved_tensors
        utils = triton.runtime.driver.active.utils
        rows = utils.get_device_properties(x.device.index)["multiprocessor_count"]
        partial = torch.empty((rows, NUM_FEATURES), dtype=torch.float32, device=x.device)
        dx = torch.empty_like(grad)
        _worked_out[(rows,)](grad, dx, x.numel(), DTYPE=_DTYPES[x.dtype])
        return dx + partial.sum(), None


def _plainly(x: Tensor, y: Tensor) -> None:
    num = x.numel()
    kernel = _double.warmup(x, y, num, DTYPE=tl.float32, BLOCK=64, grid=(1,))
    kernel._init_handles()
    assert kernel.n_regs > 0
    block = max(64, 65536 // kernel.n_regs // 32)
    _double[lambda meta: (triton.cdiv(num, meta["BLOCK"]),)](x, y, num, DTYPE=tl.float32, BLOCK=block)


def _by_tuning(x: Tensor, y: Tensor) -> None:
    _tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), DTYPE=tl.float32)


@triton_op("tests_triton::doubled", mutates_args=())
def _doubled(x: Tensor) -> Tensor:
    copied = x.clone()
    y = torch.empty_like(x)
    wrap_triton(_double)[(1,)](copied, y, x.numel(), tl.float32, 64)
    return y


_doubled.register_autograd(lambda _context, grad: grad * 2)


@torch.library.custom_op(
    "moe::moe_mm", mutates_args=(), device_types="cuda"
)  # as ibm-fms names one of its own
def _of_experts(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    _tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), DTYPE=tl.float32)
    return y


@_of_experts.register_fake
def _shape_of_experts(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_of_experts.register_autograd(lambda _context, grad: grad * 2)


class _Layer(nn.Module):
    def __init__(self, double: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(NUM_FEATURES))
        self._double = double

    def forward(self, x: Tensor) -> Tensor:
        return self._double(x * self.weight)


def _read_on_the_host(x: Tensor) -> Tensor:
    """Reads a count that a kernel writes on the host, as a loss that is a mean over counted targets does."""
    count = torch.empty((), dtype=torch.int64, device=x.device)
    _double[(1,)](x, count, x.numel(), tl.int64, 64)
    return x * 2 / count.item()


class _Scaled(torch.autograd.Function):
    """A fused loss: its forward makes the gradient, which its backward scales unless the factor is 1."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        weight, (gradient, loss) = torch.ones(NUM_FEATURES, device=x.device), _loss_and_gradient(x)
        context.save_for_backward(gradient * weight)
        return loss

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        (gradient,) = context.saved_tensors
        if not torch.equal(grad, torch.tensor(1.0, device=grad.device)):
            _double[(1,)](gradient, gradient, gradient.numel(), DTYPE=tl.float32, BLOCK=64)
        return gradient  # type: ignore[no-any-return]


def _loss_and_gradient(x: Tensor) -> tuple[Tensor, Tensor]:
    counted = torch.arange(len(x), device=x.device) != 1

    def loss(rows: Tensor) -> Tensor:
        return (rows.mean(1) * counted).sum(-1) / counted.sum(-1)

    return torch.func.grad_and_value(loss)(x.detach())


def _while_pytorch_has_none(x: Tensor) -> Tensor:
    assert not has_triton_package()
    assert not has_triton()
    return x * 2


def _workload(double: Callable[[Tensor], Tensor]) -> Workload:
    return Workload(
        build_model=lambda: _Layer(double),
        make_batch=lambda batch_size, device: torch.randn(batch_size, NUM_FEATURES, device=device),
        loss=lambda model, batch: model(batch).mean(),
    )


plain = _workload(lambda x: _Doubled.apply(x, _plainly))  # type: ignore[no-any-return]
experts = _workload(_of_experts)
tuned = _workload(lambda x: _Doubled.apply(x, _by_tuning))  # type: ignore[no-any-return]
operator = _workload(_doubled)
fused_loss = _workload(_Scaled.apply)
asking = _workload(_while_pytorch_has_none)
read = _workload(_read_on_the_host)
