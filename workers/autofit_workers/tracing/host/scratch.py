"""Scratch memory of CPU operators, learned by running each once on small batches.

oneDNN, which runs convolutions and LSTM layers, chooses layouts and algorithms by the processor, the number
of threads and the shapes, and copies its inputs into layouts of its own. Only a run shows how much memory it
takes. All of it comes from PyTorch's CPU allocator (`IDeepRegistration.cpp` of aten/src/ATen/native/mkldnn),
whose blocks the profiler reports. So each distinct call of a trace is run on two small batches here, and the
size of each of its blocks is taken to be linear in the batch size.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from autofit_workers.process import host_memory
from autofit_workers.pytorch.dispatch import disable_current_modes
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.replay.spans import Workspace, between
from autofit_workers.tracing.host.allocator_peak import block_changes, peak_of

aten: Any = torch.ops.aten

# Batch sizes to run; larger ones would take longer and give much the same lines.
_BATCHES = (2, 4)
_SMALLEST_BYTES = 4096  # smaller blocks vary from batch to batch and hardly matter

_Line = tuple[int, int]


# By operator, the batch dimension of each argument that has one, by the argument's position.
_BATCH_DIMENSIONS: dict[Any, dict[int, int]] = {
    aten.convolution.default: {0: 0},
    aten.convolution_backward.default: {0: 0, 1: 0},
    aten.mkldnn_rnn_layer.default: {0: 1, 5: 0, 6: 0},
    aten.mkldnn_rnn_layer_backward.default: {0: 1, 5: 0, 6: 0, 7: 1, 8: 0, 9: 0, 10: 1, 11: 0, 12: 0},
}
_RNN_WORKSPACE = 3  # index of an output of `mkldnn_rnn_layer` that PyTorch's fake function leaves empty


@dataclass(frozen=True, slots=True)
class Block:
    """Block of scratch memory, whose size is linear in the batch size.

    Attributes:
        constant_bytes: bytes that do not depend on the batch size.
        sample_bytes: further bytes for each sample.
        touched_bytes: bytes of the constant part that are written to, and so become resident.
    """

    constant_bytes: int
    sample_bytes: int
    touched_bytes: int

    def at(self, batch_size: int, more_bytes: int = 0) -> Workspace:
        """Low, likely and high bytes of the block at `batch_size`.

        The low end counts only bytes that are written to; the high end is the likely size and `more_bytes`.
        """
        samples = self.sample_bytes * batch_size
        likely = max(0, self.constant_bytes + samples)
        return between(min(likely, max(0, self.touched_bytes + samples)), likely, likely + more_bytes)


@dataclass(frozen=True, slots=True)
class Pass:
    """Scratch blocks that one pass of an operator's call, such as the weight gradient, allocates and frees.

    Attributes:
        func: the operator called.
        outputs: indices of the call's outputs that the pass computes.
        output_lines: bytes of each output: those that do not depend on the batch size, and those per sample.
        blocks: scratch blocks of the pass.
        events: in order, `n` where block number `n` is allocated, `~n` where it is freed, and None where the
            largest of the outputs is allocated.
    """

    func: OpOverload
    outputs: tuple[int, ...]
    output_lines: tuple[_Line, ...]
    blocks: tuple[Block, ...]
    events: tuple[int | None, ...]

    def spans(self, args: tuple[Any, ...]) -> list[Workspace]:
        """Low, likely and high size in bytes of each block of the pass, in a call with `args`.

        For weight gradients the high end of the largest block has room for one partial sum per thread, as
        threads that share a larger batch may each keep one.
        """
        return self._spans_of(args, _batch_size(self.func, args))

    def peak(self, args: tuple[Any, ...], num_samples: int) -> Workspace:
        """Low, likely and high peak in bytes of the pass's scratch memory, with `num_samples` samples."""
        spans = self._spans_of(args, num_samples)
        ends = []
        for level in ("low_bytes", "likely_bytes", "high_bytes"):
            sizes = [getattr(span, level) for span in spans]
            ends.append(peak_of(sizes[e] if e >= 0 else -sizes[~e] for e in self.events if e is not None))
        return between(*ends)

    def _spans_of(self, args: tuple[Any, ...], batch_size: int) -> list[Workspace]:
        spans = [block.at(batch_size) for block in self.blocks]
        if self.func is aten.convolution_backward.default and 1 in self.outputs and spans:
            weight: Tensor = args[2]
            sums_bytes = int(torch.get_num_threads() * weight.numel() * weight.element_size())
            largest = max(range(len(spans)), key=lambda i: spans[i].likely_bytes)
            spans[largest] = self.blocks[largest].at(batch_size, sums_bytes)
        return spans


def passes(func: OpOverload, args: tuple[Any, ...]) -> tuple[Pass, ...]:
    """Passes of a call of a convolution or a oneDNN LSTM layer; empty for operators with little scratch."""
    if func not in _BATCH_DIMENSIONS or _batch_size(func, args) == 0:
        return ()
    if func is not aten.convolution_backward.default:
        return (_pass(func, args, None),)
    # The order of `mkldnn_convolution_backward` (aten/src/ATen/native/mkldnn/Conv.cpp).
    of_input, of_weight, of_bias = args[-1]
    made = []
    if of_input:
        made.append(_pass(func, (*args[:-1], [True, False, False]), (0,)))
    if of_weight:
        made.append(_pass(func, (*args[:-1], [False, True, of_bias]), (1, 2)))
    return tuple(made)


def with_workspace(func: OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """Returns `result` of an LSTM layer, with the workspace for backward put in for an empty tensor."""
    if func is not aten.mkldnn_rnn_layer.default or _batch_size(func, args) == 0:
        return result
    lines = _pass(func, args, None).output_lines
    if len(lines) <= _RNN_WORKSPACE:  # without gradients the layer keeps no workspace
        return result
    constant, slope = lines[_RNN_WORKSPACE]
    workspace = torch.empty(constant + slope * _batch_size(func, args), dtype=torch.uint8)
    return (*result[:_RNN_WORKSPACE], workspace)


_known: dict[Any, Pass] = {}


def _pass(func: OpOverload, args: tuple[Any, ...], outputs: tuple[int, ...] | None) -> Pass:
    """Scratch memory by which a call computes some of its outputs; measured once for all batch sizes.

    Args:
        func: the operator.
        args: its arguments.
        outputs: indices of the outputs that are computed; None for all.
    """
    dimensions = _BATCH_DIMENSIONS[func]
    key = (
        func,
        torch.is_grad_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_num_threads(),
        tuple(_described(arg, dimensions.get(index)) for index, arg in enumerate(args)),
    )
    if key not in _known:
        with disable_current_modes():  # dispatch modes only: grad mode decides what a layer keeps
            _known[key] = _measured(func, args, outputs)
    return _known[key]


def _batch_size(func: OpOverload, args: tuple[Any, ...]) -> int:
    return int(args[0].shape[_BATCH_DIMENSIONS[func][0]])


def _described(arg: Any, batch_dimension: int | None) -> Any:
    """Cache key of an argument; for a tensor its dtype, layout, and shape without the batch size."""
    if not isinstance(arg, Tensor):
        return tuple(arg) if isinstance(arg, list) else arg
    if arg.dtype == torch.uint8:
        return None  # the workspace of an LSTM layer
    return arg.dtype, _with_batch(arg, batch_dimension, -1), _layout(arg)


def _with_batch(tensor: Tensor, dimension: int | None, batch_size: int) -> tuple[int, ...]:
    return tuple(batch_size if d == dimension else size for d, size in enumerate(tensor.shape))


def _layout(tensor: Tensor) -> torch.memory_format:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim(), torch.contiguous_format)
    is_plain = tensor.is_contiguous() or not tensor.is_contiguous(memory_format=wanted)
    return torch.contiguous_format if is_plain else wanted


def _measured(func: OpOverload, args: tuple[Any, ...], outputs: tuple[int, ...] | None) -> Pass:
    """Scratch memory by which a call computes some of its outputs, measured at two batch sizes."""
    fewer, more = _BATCHES
    real = _real_arguments(func, args, more)
    changes, sizes = _changes(func, real)  # the first run also makes oneDNN's primitives
    others, other_sizes = _changes(func, _real_arguments(func, args, fewer))
    if [c > 0 for c in changes] != [c > 0 for c in others]:
        # oneDNN chose different algorithms: all scratch is taken to be one block of the peak's size.
        changes, others = [_beside(changes, sizes)], [_beside(others, other_sizes)]
    untouched_bytes = max(0, peak_of(changes) - _touched_bytes(func, real))
    lines = [_line(a, b) for a, b in zip(others, changes, strict=True)]
    output_lines = tuple(_line(a, b) for a, b in zip(other_sizes, sizes, strict=True))
    taken, events = _matched(lines, output_lines)
    largest = max(((c, i) for i, (c, slope) in enumerate(taken) if not slope), default=(0, -1))[1]
    blocks = tuple(
        Block(constant, slope, max(0, constant - untouched_bytes) if i == largest else constant)
        for i, (constant, slope) in enumerate(taken)
    )
    return Pass(func, tuple(range(len(sizes))) if outputs is None else outputs, output_lines, blocks, events)


def _line(fewer_bytes: int, more_bytes: int) -> _Line:
    """Size of a block as a line in the batch size: constant bytes, and bytes per sample.

    Both are negative if the block is freed. A block that is smaller at the larger batch is taken to be
    constant.

    Args:
        fewer_bytes, more_bytes: bytes measured at the smaller and the larger of `_BATCHES`; negative for a
            free.
    """
    if more_bytes < 0:
        constant, slope = _line(-fewer_bytes, -more_bytes)
        return -constant, -slope
    fewer, more = _BATCHES
    if more_bytes <= fewer_bytes:
        return fewer_bytes, 0
    slope = (more_bytes - fewer_bytes) // (more - fewer)
    return more_bytes - slope * more, slope


def _matched(
    lines: list[_Line], output_lines: tuple[_Line, ...]
) -> tuple[list[_Line], tuple[int | None, ...]]:
    """Scratch blocks of a call, and the order in which they are allocated and freed.

    A free is matched to the last live block of its size. Blocks that are never freed and have an output's
    size are the outputs.

    Args:
        lines: allocations and frees of the call, in order, as `_line` returns them.
        output_lines: sizes of the outputs, as such lines.

    Returns:
        The blocks as lines, and the events as in `Pass.events`.
    """
    taken: list[_Line] = []
    events: list[int] = []
    alive: list[int] = []
    for constant, slope in lines:
        if constant + slope * _BATCHES[1] > 0:
            alive.append(len(taken))
            events.append(len(taken))
            taken.append((constant, slope))
            continue
        number = next((i for i in reversed(alive) if taken[i] == (-constant, -slope)), None)
        if number is not None:
            alive.remove(number)
            events.append(~number)
    made: list[int] = []
    for line in sorted(output_lines, key=lambda line: -_at(line)):
        made += [i for i in reversed(alive) if taken[i] == line and i not in made][:1]
    events += [~i for i in alive if i not in made]
    largest = made[0] if made else None
    kept = [None if e == largest else e for e in events if e == largest or e not in made]
    return taken, tuple(kept)


def _at(line: _Line) -> int:
    return line[0] + line[1] * _BATCHES[1]


def _beside(changes: list[int], sizes: list[int]) -> int:
    return max(1, peak_of(changes) - sum(sizes))


def _changes(func: OpOverload, real: list[Any]) -> tuple[list[int], list[int]]:
    """Sizes in bytes of a call's block changes (allocations positive, frees negative), and of its outputs."""
    with profile(profile_memory=True) as profiler:  # `torch.profiler` would import the compiler
        outputs = func(*real)
    return [c for c in block_changes(profiler) if abs(c) >= _SMALLEST_BYTES], _sizes(outputs)


def _touched_bytes(func: OpOverload, real: list[Any]) -> int:
    """Bytes by which a repeated call raises the process's peak resident set; 0 where that is not reported."""
    with suppress(OSError):  # without a reset the peak covers the whole life of the process
        host_memory.reset_peak_resident()
    before_bytes = host_memory.status_bytes("VmRSS")
    func(*real)
    if before_bytes is None:
        return 0
    return host_memory.peak_resident_bytes() - before_bytes


def _sizes(outputs: Any) -> list[int]:
    return [leaf.untyped_storage().nbytes() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _real_arguments(func: OpOverload, args: tuple[Any, ...], batch_size: int) -> list[Any]:
    """Arguments of a call with its fake tensors replaced by real ones of `batch_size` samples."""
    dimensions = _BATCH_DIMENSIONS[func]
    real = [
        _real(arg, _with_batch(arg, dimensions.get(index), batch_size)) if isinstance(arg, Tensor) else arg
        for index, arg in enumerate(args)
    ]
    if func is aten.mkldnn_rnn_layer_backward.default:
        reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, sizes, batch_first = real[
            13:22
        ]
        with torch.enable_grad():
            real[22] = aten.mkldnn_rnn_layer(
                *real[:7], reverse, sizes, mode, hidden_size, num_layers, has_biases, bidirectional,
                batch_first, train,
            )[_RNN_WORKSPACE]  # fmt: skip
    return real


def _real(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.ones(shape, dtype=tensor.dtype).contiguous(memory_format=_layout(tensor))
