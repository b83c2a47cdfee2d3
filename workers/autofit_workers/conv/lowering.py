"""Interface of lowerings, which compute rewritten convolutions, and the autograd function that they share.

Like PyTorch's convolution, the function saves only input and weight for backward. Each pass allocates its
result first and its temporaries afterwards, as PyTorch's backends do, so that a rewrite only differs in
temporaries.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autofit_workers.conv.geometry import Geometry


class Lowering(Protocol):
    """Interface of a lowering: computes forward, input gradient and weight gradient of a convolution.

    Inputs are N×C×spatial, weights K×(C/groups)×filter, outputs N×K×spatial.
    """

    def forward(self, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Output of the convolution, without a bias."""
        ...

    def grad_input(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of the convolution's input; only the shape and layout of `image` matter."""
        ...

    def grad_weight(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of the convolution's weight; only the shape and type of `weight` matter."""
        ...


class _Lowered(torch.autograd.Function):
    """Autograd function of a convolution whose forward and backward a lowering computes."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes arguments by position
        ctx: Any,
        image: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        lowering: Lowering,
    ) -> Tensor:
        ctx.save_for_backward(image, weight)
        ctx.geometry, ctx.lowering = geometry, lowering
        output = lowering.forward(image, weight, geometry)
        if bias is not None:
            output += bias.view(-1, *(1,) * geometry.num_dimensions)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, weight = ctx.saved_tensors
        geometry, lowering = ctx.geometry, ctx.lowering
        grad = grad.contiguous()
        of_image, of_weight, of_bias, *_ = ctx.needs_input_grad
        summed = (0, *range(2, grad.dim()))
        return (
            lowering.grad_input(grad, image, weight, geometry) if of_image else None,
            lowering.grad_weight(grad, image, weight, geometry) if of_weight else None,
            grad.sum(summed) if of_bias else None,
            None,
            None,
        )


def lowered(
    image: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, lowering: Lowering
) -> Tensor:
    """Output of a convolution computed by `lowering`, with gradients for the tensors that require them."""
    output: Tensor = _Lowered.apply(image, weight, bias, geometry, lowering)  # type: ignore[no-untyped-call]
    return output
