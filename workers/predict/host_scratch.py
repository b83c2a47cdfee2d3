"""What operators take on a CPU beside their outputs, learned by running them once.

oneDNN, which runs convolutions, chooses layouts and algorithms by the processor, the number of
threads and the shapes, and copies inputs, weights and outputs into layouts of its own. Nothing but
a run tells what it takes; all of it comes from PyTorch's CPU allocator (`IDeepRegistration.cpp` of
aten/src/ATen/native/mkldnn), which the profiler shows. So each different convolution of a trace
runs on two small batches here, and each of its blocks is taken for a line in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from workers.measure.cpu import ResidentSet
from workers.predict.workspace import Workspace, between

aten: Any = torch.ops.aten

# The smallest batches that several threads share; more would take longer and tell little more.
_BATCHES = (2, 4)
_SMALLEST_BYTES = 4096  # what is smaller differs from batch to batch and makes no difference
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a call, a line in the batch size.

    Attributes:
        constant_bytes, sample_bytes: of no sample, and of each.
        touched_bytes: of the constant part, what is written to.
    """

    constant_bytes: int
    sample_bytes: int
    touched_bytes: int

    def at(self, batch_size: int, more_bytes: int = 0) -> Workspace:
        """Its size in a call: at the low end what is written to, at the high end with so much more."""
        samples = self.sample_bytes * batch_size
        likely = max(0, self.constant_bytes + samples)
        return between(min(likely, max(0, self.touched_bytes + samples)), likely, likely + more_bytes)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass of a call does with memory, in order.

    Attributes:
        outputs: which of the call's outputs it makes.
        blocks: what it takes beside them.
        events: the number of a block where it is taken, inverted where it is given back, and None
            where the largest of the outputs is made.
    """

    outputs: tuple[int, ...]
    blocks: tuple[Block, ...]
    events: tuple[int | None, ...]

    def spans(self, args: tuple[Any, ...]) -> list[Workspace]:
        """The sizes of its blocks in a call with such arguments.

        Threads that share a larger batch may each sum up the gradients of weights; the largest
        block has room for that at its high end.
        """
        batch_size = int(args[0].shape[0])
        spans = [block.at(batch_size) for block in self.blocks]
        if 1 in self.outputs and spans:
            weight: Tensor = args[2]
            sums_bytes = int(torch.get_num_threads() * weight.numel() * weight.element_size())
            largest = max(range(len(spans)), key=lambda i: spans[i].likely_bytes)
            spans[largest] = self.blocks[largest].at(batch_size, sums_bytes)
        return spans


def passes(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Pass, ...]:
    """The passes of a convolution; of other operators none, for they take little beside outputs."""
    if func is aten.convolution.default:
        return (_pass(func, args, (0,)),) if args[0].shape[0] else ()
    if func is aten.convolution_backward.default and args[0].shape[0]:
        # The order of `mkldnn_convolution_backward` (aten/src/ATen/native/mkldnn/Conv.cpp).
        wanted = args[-1]
        of_input = _pass(func, _with_mask(args, (True, False, False)), (0,)) if wanted[0] else None
        of_weight = _pass(func, _with_mask(args, (False, True, wanted[2])), (1, 2)) if wanted[1] else None
        return tuple(one for one in (of_input, of_weight) if one is not None)
    return ()


_known: dict[Any, Pass] = {}


def _pass(func: torch._ops.OpOverload, args: tuple[Any, ...], outputs: tuple[int, ...]) -> Pass:
    key = (func, tuple(_described(arg) for arg in args))
    if key not in _known:
        with _disable_current_modes(), torch.no_grad():
            _known[key] = _measured(func, args, outputs)
    return _known[key]


def _with_mask(args: tuple[Any, ...], mask: tuple[bool, bool, bool]) -> tuple[Any, ...]:
    return (*args[:-1], list(mask))


def _described(arg: Any) -> Any:
    """An argument as far as it decides the lines: everything of a tensor but its batch dimension."""
    if isinstance(arg, Tensor):
        return arg.dtype, tuple(arg.shape[1:]), _layout(arg)
    return tuple(arg) if isinstance(arg, list) else arg


def _layout(tensor: Tensor) -> torch.memory_format:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim(), torch.contiguous_format)
    is_plain = tensor.is_contiguous() or not tensor.is_contiguous(memory_format=wanted)
    return torch.contiguous_format if is_plain else wanted


def _measured(func: torch._ops.OpOverload, args: tuple[Any, ...], outputs: tuple[int, ...]) -> Pass:
    fewer, more = _BATCHES
    real = _real_arguments(func, args, more)
    changes, output_bytes = _changes(func, real)  # the first run also makes oneDNN's primitives
    others, other_output_bytes = _changes(func, _real_arguments(func, args, fewer))
    if [c > 0 for c in changes] != [c > 0 for c in others]:
        # Another algorithm: the whole is taken for one block.
        changes, others = [_beside(changes, output_bytes)], [_beside(others, other_output_bytes)]
    peak_bytes = max(accumulate(changes), default=0)
    untouched_bytes = max(0, peak_bytes - _touched_bytes(func, real))
    lines = [_line(a, b) for a, b in zip(others, changes, strict=True)]
    output = _line(other_output_bytes, output_bytes)
    taken, events = _matched(lines, output)
    largest = max(((c, i) for i, (c, slope) in enumerate(taken) if not slope), default=(0, -1))[1]
    blocks = tuple(
        Block(constant, slope, max(0, constant - untouched_bytes) if i == largest else constant)
        for i, (constant, slope) in enumerate(taken)
    )
    return Pass(outputs, blocks, events)


def _line(fewer_bytes: int, more_bytes: int) -> tuple[int, int]:
    """The line of a block, negative where it is given back; one that shrinks stays at its largest."""
    if more_bytes < 0:
        constant, slope = _line(-fewer_bytes, -more_bytes)
        return -constant, -slope
    fewer, more = _BATCHES
    if more_bytes <= fewer_bytes:
        return fewer_bytes, 0
    slope = (more_bytes - fewer_bytes) // (more - fewer)
    return more_bytes - slope * more, slope


def _matched(
    lines: list[tuple[int, int]], output: tuple[int, int]
) -> tuple[list[tuple[int, int]], tuple[int | None, ...]]:
    """The blocks of a call and its events; a free is that of the last block of its line.

    The last block of the output's line that is never freed is the output.
    """
    more = _BATCHES[1]
    taken: list[tuple[int, int]] = []
    events: list[int] = []
    alive: list[int] = []
    for constant, slope in lines:
        if constant + slope * more > 0:
            alive.append(len(taken))
            events.append(len(taken))
            taken.append((constant, slope))
            continue
        number = next((i for i in reversed(alive) if taken[i] == (-constant, -slope)), None)
        if number is not None:
            alive.remove(number)
            events.append(~number)
    made = next((i for i in reversed(alive) if taken[i] == output), None)
    events += [~i for i in alive if i != made]
    return taken, tuple(None if e == made else e for e in events)


def _beside(changes: list[int], output_bytes: int) -> int:
    return max(1, max(accumulate(changes), default=0) - output_bytes)


def _changes(func: torch._ops.OpOverload, real: list[Any]) -> tuple[list[int], int]:
    """What a call takes and, negative, gives back in order, and the bytes of its largest output."""
    with profile(profile_memory=True) as profiler:  # that of `torch.profiler` would bring the compiler
        outputs = func(*real)
    assert profiler.kineto_results is not None
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return [c for c in changes if abs(c) >= _SMALLEST_BYTES], max(_sizes(outputs))


def _touched_bytes(func: torch._ops.OpOverload, real: list[Any]) -> int:
    """What a call that ran before adds to the resident set at its peak."""
    meter = ResidentSet()
    meter.reset()
    before_bytes = int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    func(*real)
    return (meter.peaks().device_bytes or 0) - before_bytes


def _sizes(outputs: Any) -> Iterator[int]:
    return (leaf.untyped_storage().nbytes() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))


def _real_arguments(func: torch._ops.OpOverload, args: tuple[Any, ...], batch_size: int) -> list[Any]:
    """Arguments of the same shapes, the samples of another number."""
    batched = (0,) if func is aten.convolution.default else (0, 1)
    return [
        _real(arg, batch_size if index in batched else arg.shape[0]) if isinstance(arg, Tensor) else arg
        for index, arg in enumerate(args)
    ]


def _real(tensor: Tensor, first_size: int) -> Tensor:
    made = torch.ones((first_size, *tensor.shape[1:]), dtype=tensor.dtype)
    return made.contiguous(memory_format=_layout(tensor))
