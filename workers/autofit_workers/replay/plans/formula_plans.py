"""Convolution plans by formula, where neither libcudnn nor a table of its answers is available.

cuDNN 9.27's first plan for a dense convolution in fp32 on an A100 is a tensor-core kernel that needs its
operands in channels last: its workspace holds copies in that layout, of the input in the forward pass, and of
both feature maps in backward; on an H200 it holds both in every pass. A T4 has no tensor cores for fp32 and
needs no copies. Deep stacks of 3×3 layers were measured to need more (VGG-16 in GPUMemNet's table), about as
much as non-fused Winograd. The first plan of grouped and 1×1 convolutions often has no workspace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.work import Convolution, ConvPass

_NO_ENGINE = -1


@dataclass(frozen=True)
class FormulaPlans:
    """Source of convolution plans that estimates workspaces by formulas, without cuDNN; a `PlanSource`.

    Attributes:
        architecture: `sm_XY` of the card.
    """

    architecture: str
    name: ClassVar[str] = "formulas"
    knows_the_order: ClassVar[bool] = False

    @property
    def _capability(self) -> int:
        return Architecture.of(self.architecture).capability

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each convolution, the likely one first; the last plan of each needs no workspace."""
        return [self._plans(call) for call in calls]

    def _plans(self, call: Convolution) -> tuple[Plan, ...]:
        """Plans of one convolution by formula, the likely one first, the last without workspace."""
        nothing = Plan(_NO_ENGINE, 0)
        dense = call.groups == 1 and math.prod(call.weight_shape[2:]) > 1
        if dense and not Architecture.of(self.architecture).is_planned_for:
            # No table covers such cards: cuDNN may copy, transform by Winograd, or need no workspace.
            most = max(_input_bytes(call) + _output_bytes(call), _winograd_bytes(call))
            return (nothing, Plan(_NO_ENGINE, most), nothing)
        if not dense or not self._uses_tensor_cores(call):
            return (nothing,)
        both = 0 if call.channels_last else _input_bytes(call) + _output_bytes(call)
        one_copy = call.conv_pass is ConvPass.FPROP and self._capability < 90
        likely = min(both, _input_bytes(call)) if one_copy else both
        sizes = dict.fromkeys((likely, both, max(both, _winograd_bytes(call))))
        return (*(Plan(_NO_ENGINE, size, uses_tensor_cores=True) for size in sizes), nothing)

    def _uses_tensor_cores(self, call: Convolution) -> bool:
        """Whether the card has tensor cores for a call's data type: float16 since sm_70, all since sm_80."""
        return self._capability >= 80 or (self._capability >= 70 and call.dtype == "float16")


def _input_bytes(call: Convolution) -> int:
    return math.prod(call.input_shape) * call.element_bytes


def _output_bytes(call: Convolution) -> int:
    return math.prod(call.output_shape) * call.element_bytes


def _winograd_bytes(call: Convolution) -> int:
    """Workspace bytes of a convolution by non-fused Winograd F(4×4, 3×3); 0 where it does not apply.

    It is a²·(N·C·t + N·K·t + K·C) elements: N samples, C input and K output channels, t tiles of 4×4 output
    pixels, and a = 4 + 3 − 1 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).
    """
    if call.weight_shape[2:] != (3, 3) or set(call.stride) != {1} or set(call.dilation) != {1}:
        return 0
    (n, c), (k, p, q) = call.input_shape[:2], call.output_shape[1:]
    tiles = -(-p // 4) * -(-q // 4)
    return call.element_bytes * 36 * (n * c * tiles + n * k * tiles + k * c)
