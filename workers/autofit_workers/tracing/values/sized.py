"""Runs operators, such as `nonzero`, whose output sizes depend on values, with known or assumed sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.tracing.values.decisions import running
from autofit_workers.tracing.values.known import copied_to_host, known, learn

aten: Any = torch.ops.aten

Result = tuple[Any, ...]
_BITS_OF_A_WORD = 64


class Sizes:
    """Runs operators whose output sizes depend on values, a method for each; `rule_of` finds an operator's.

    A size follows from the inputs' values if they are known; else it is assumed and recorded.

    Args:
        fresh: `fresh(shape, dtype, like)` makes a fake tensor on the device of `like`, unobserved.
        again: `again(func, args, kwargs)` runs any operator on the fake device.
    """

    def __init__(
        self, fresh: Callable[[tuple[int, ...], torch.dtype, Tensor], Tensor], again: Callable[..., Any]
    ) -> None:
        self._fresh = fresh
        self._again = again

    def _placed(self, values: Tensor, like: Tensor) -> Tensor:
        made = self._fresh(tuple(values.shape), values.dtype, like)
        learn(made, values)
        return made

    def nonzero(self, tensor: Tensor) -> Tensor:
        found, what = _given(tensor), "elements that are not zero"
        if found is None:
            num = running().share_of(what, tensor.numel())
            return self._fresh((num, tensor.dim()), torch.int64, tensor)
        places = found.nonzero()
        num = running().counted(what, len(places), tensor.numel())
        if num == len(places):
            return self._placed(places, tensor)
        return self._fresh((num, tensor.dim()), torch.int64, tensor)

    def masked_select(self, tensor: Tensor, mask: Tensor) -> Tensor:
        """Elements of `tensor` that a mask selects; their number is known, or else assumed."""
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        found, what = _given(mask), "elements that a mask selects"
        if found is None:
            num = running().share_of(what, shape.numel())
        else:
            num = running().counted(what, int(found.expand(shape).sum()), shape.numel())
        result = self._fresh((num,), tensor.dtype, tensor)
        values = known(tensor)
        if found is not None and values is not None:
            # Ignored if the assumed size is larger than the number of known values.
            learn(result, torch.masked_select(values.values, found), is_made_up=values.is_made_up)
        return result

    def index(self, tensor: Tensor, indices: list[Tensor | None]) -> Tensor:
        """Result of indexing with masks, each replaced by the indices where it is true (`expandTensors`)."""
        places: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                places.append(index)
            else:
                found: Tensor = self._again(aten.nonzero.default, (self._beside(index, tensor),), {})
                places += [self._again(aten.select.int, (found, 1, dim), {}) for dim in range(index.dim())]
        result: Tensor = self._again(aten.index.Tensor, (tensor, places), {})
        return result

    def boxes_kept(self, boxes: Tensor, scores: Tensor, _iou_threshold: float) -> Tensor:
        """Indices of the boxes that Torchvision's `nms` keeps; their number is assumed.

        Temporaries are sorted boxes and a bit for each pair of boxes (`nms_kernel.cu`).
        """
        num = boxes.shape[0]
        if not num:
            return self._fresh((0,), torch.int64, boxes)
        order = self._again(aten.sort.default, (scores, 0, True), {})[1]
        in_order = self._again(aten.index_select.default, (boxes, 0, order), {})
        words = (num * -(-num // _BITS_OF_A_WORD),)
        of_pairs = self._again(
            aten.empty.memory_format, (words,), {"dtype": torch.int64, "device": boxes.device}
        )
        del in_order, of_pairs
        num_kept = running().share_of("boxes that suppression keeps", num)
        kept = self._fresh((num_kept,), torch.int64, boxes)
        result: Tensor = self._again(aten.index.Tensor, (order, [kept]), {})
        return result

    def _beside(self, index: Tensor, tensor: Tensor) -> Tensor:
        """Mask `index` as a fake tensor on the device of `tensor`; a real CPU mask's values are known."""
        return index if isinstance(index, FakeTensor) else self._placed(index, tensor)

    def unique_values(self, tensor: Tensor, sorted_: bool = True, inverse: bool = False) -> Result:
        """Outputs of `_unique`: distinct values and inverse indices, without counts."""
        return self.unique_counted(tensor, sorted_, inverse)[:2]

    def unique_counted(
        self, tensor: Tensor, sorted_: bool = True, inverse: bool = False, counted: bool = False
    ) -> Result:
        """Outputs of `_unique2`: distinct values, inverse indices and counts."""
        values, inverses, counts = self._different(
            tensor, None, lambda found: torch.unique(found, sorted_, return_inverse=True, return_counts=True)
        )
        none = self._none(tensor)
        return values, inverses if inverse else none, counts if counted else none

    def unique_consecutive(
        self, tensor: Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
    ) -> Result:
        values, inverses, numbers = self._different(
            tensor,
            dim,
            lambda found: torch.unique_consecutive(found, return_inverse=True, return_counts=True, dim=dim),
        )
        return values, inverses if inverse else self._none(tensor), numbers if counts else self._none(tensor)

    def unique_dim(self, tensor: Tensor, dim: int, *_flags: bool) -> Result:
        """Outputs of `unique_dim`; inverse indices and counts are always computed (Unique.cu)."""
        return self._different(
            tensor, dim, lambda found: torch.unique(found, return_inverse=True, return_counts=True, dim=dim)
        )

    def unique_dim_consecutive(self, tensor: Tensor, dim: int, *_flags: bool) -> Result:
        return self.unique_consecutive(tensor, True, True, dim)

    def _different(self, tensor: Tensor, dim: int | None, find: Callable[[Tensor], Result]) -> Result:
        """Distinct values of a tensor (or distinct slices along `dim`), inverse indices, and counts.

        Args:
            find: computes all three from known values.
        """
        found = _given(tensor)
        if found is not None:
            return tuple(self._placed(each, tensor) for each in find(found))
        most = tensor.numel() if dim is None else tensor.shape[dim]
        num = running().share_of("different values", most)
        shape = [num] if dim is None else list(tensor.shape)
        shape[dim or 0] = num
        return (
            self._fresh(tuple(shape), tensor.dtype, tensor),
            self._fresh(tuple(tensor.shape) if dim is None else (most,), torch.int64, tensor),
            self._fresh((num,), torch.int64, tensor),
        )

    def _none(self, tensor: Tensor) -> Tensor:
        return self._fresh((0,), torch.int64, tensor)

    def bincount(self, tensor: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        found = _given(tensor)
        if found is not None:
            length = max(minlength, int(found.max()) + 1 if found.numel() else 0)
        else:
            length = running().assume("bins of a count", max(minlength, 1), None)
        dtype = torch.int64 if weights is None else weights.dtype
        return self._fresh((length,), dtype, tensor)

    def repeat_interleave(self, repeats: Tensor, *, output_size: int | None = None) -> Tensor:
        found = _given(repeats)
        if found is not None:
            return self._placed(torch.repeat_interleave(found), repeats)
        num = output_size if output_size is not None else running().assume("repeats", repeats.numel(), None)
        return self._fresh((num,), repeats.dtype, repeats)

    def packed(self, input: Tensor, lengths: Tensor, batch_first: bool) -> Result:  # noqa: A002
        """Outputs of `_pack_padded_sequence`: packed time steps, and each step's batch size."""
        longest = input.shape[1 if batch_first else 0]
        found, what = _given(lengths), "steps of packed sequences"
        all_steps = torch.full(lengths.shape, longest)
        if found is None:
            found = (all_steps * running().share).round().clamp(min=1).long()
            running().assume(what, int(found.sum()), int(all_steps.sum()))
        elif running().counted(what, int(found.sum()), int(all_steps.sum())) != int(found.sum()):
            found = all_steps
        real = found
        batch_sizes = torch.tensor([int((real > step).sum()) for step in range(int(real[0]))])
        data = self._fresh((int(real.sum()), *input.shape[2:]), input.dtype, input)
        return data, batch_sizes

    def packed_backward(
        self, grad: Tensor, size: list[int], _batch_sizes: Tensor, batch_first: bool
    ) -> Tensor:
        shape = [size[1], size[0], *size[2:]] if batch_first else size
        made: Tensor = self._again(aten.zeros.default, (shape,), {"dtype": grad.dtype, "device": grad.device})
        return self._again(aten.transpose.int, (made, 0, 1), {}) if batch_first else made

    def ctc_loss(
        self, log_probs: Tensor, targets: Tensor, _inputs: Any, lengths: Tensor | list[int], *_rest: Any
    ) -> Result:
        """Outputs of `_ctc_loss`: losses, and log alpha for each time step and target position.

        Source: `ctc_loss_gpu_template` of LossCTC.cu.
        """
        num_steps, batch_size = log_probs.shape[:2]
        shape = (batch_size, num_steps, 2 * self._longest_target(targets, lengths) + 1)
        losses = self._fresh((batch_size,), log_probs.dtype, log_probs)
        return losses, self._fresh(shape, log_probs.dtype, log_probs)

    def ctc_loss_backward(self, _grad: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
        """Gradient of the CTC loss; log beta, a temporary as large as log alpha, lives until the end.

        Source: `ctc_loss_backward_gpu_template` of LossCTC.cu.
        """
        *_others, alpha = (each for each in rest if isinstance(each, Tensor))
        beta = self._again(aten.empty_like.default, (alpha,), {})
        gradient: Tensor = self._again(aten.empty_like.default, (log_probs,), {})
        del beta
        return gradient

    def _longest_target(self, targets: Tensor, lengths: Tensor | list[int]) -> int:
        found = torch.tensor(lengths) if isinstance(lengths, list) else _given(lengths)
        if found is not None:
            return int(found.max())
        if targets.dim() > 1:
            return targets.shape[1]
        average = -(-targets.numel() // max(1, lengths.numel()))  # type: ignore[union-attr]
        return running().assume("places of the longest target", average, targets.numel())


def _given(tensor: Tensor) -> Tensor | None:
    """Real tensor with the values of a fake one; None if they are unknown or were made up while tracing."""
    found = known(tensor)
    return None if found is None or found.is_made_up else found.values


def scalar(tensor: Tensor) -> Any:
    """Number in a one-element fake tensor, known or made up, for C++ code (`_local_scalar_dense`)."""
    assert isinstance(tensor, FakeTensor)
    found = known(tensor)
    if found is not None:
        return found.values.item()
    return 0 if not tensor.is_floating_point() else copied_to_host(tensor).item()  # type: ignore[union-attr]


def has_mask(args: tuple[Any, ...]) -> bool:
    """Whether the arguments of an index operator have a mask among the indices."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


@functools.cache
def rule_of(func: OpOverload) -> Callable[..., Any] | None:
    """Method of `Sizes` that runs an operator whose output size depends on values; None for others."""
    return SIZED.get(func) or _OF_LIBRARIES.get(func.name())


SIZED: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: Sizes.nonzero,
    aten.masked_select.default: Sizes.masked_select,
    aten._unique2.default: Sizes.unique_counted,
    aten._unique.default: Sizes.unique_values,
    aten.unique_consecutive.default: Sizes.unique_consecutive,
    aten.unique_dim.default: Sizes.unique_dim,
    aten.unique_dim_consecutive.default: Sizes.unique_dim_consecutive,
    aten.bincount.default: Sizes.bincount,
    aten.repeat_interleave.Tensor: Sizes.repeat_interleave,
    aten._pack_padded_sequence.default: Sizes.packed,
    aten._pack_padded_sequence_backward.default: Sizes.packed_backward,
    aten._ctc_loss.default: Sizes.ctc_loss,
    aten._ctc_loss.Tensor: Sizes.ctc_loss,
    aten._ctc_loss_backward.default: Sizes.ctc_loss_backward,
    aten._ctc_loss_backward.Tensor: Sizes.ctc_loss_backward,
}
# Operators that exist only after their library was imported.
_OF_LIBRARIES: dict[str, Callable[..., Any]] = {"torchvision::nms": Sizes.boxes_kept}
