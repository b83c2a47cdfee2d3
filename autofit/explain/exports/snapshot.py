"""Exports a profile as a PyTorch memory snapshot, for `torch.cuda._memory_viz` and its web page.

The fields are those of `torch.cuda.memory._snapshot()` (`THCPModule_memorySnapshot` in
torch/csrc/cuda/Module.cpp), with PyTorch's meaning: an entry's `size` is the requested size (for plans
found by benchmarking, the block's), a block's `size` that of the block; `allocated_size` of the segments adds
up to the allocated bytes, `total_size` to the reserved bytes. The page reads pickles with its own reader,
which knows few opcodes: plain dicts, lists, strings, numbers and no protocol above 4.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any

from autofit.explain.profile import Profile, peak_position, phases
from autofit.explain.views.selection import phases_of
from autofit.explain.views.timeline import history_of
from autofit_workers.replay.allocator import Action, Segment, SegmentBlock
from autofit_workers.spec.knobs.allocator import allocator_conf

# Address of the first segment, similar to CUDA's; readers take the simulator's 0 for no address.
FIRST_ADDRESS = 0x7F00_0000_0000

# The page colours allocations by category if entries have one, but stops with an error unless an entry has
# this category (`annotate_snapshot` of MemoryViz.js): entries about segments and about plans found by
# benchmarking have it.
_LINE = re.compile(r"(.*):(\d{1,9}):([^:]*)", re.DOTALL)
_NO_CATEGORY = "unknown"

_DEFAULT_POOL = (0, 0)
_UNLIMITED = (1 << 63) - 1

Frame = dict[str, Any]


def snapshot(profile: Profile, *, position: int | None = None) -> dict[str, Any]:
    """Memory snapshot of a profile, as `torch.cuda.memory._snapshot()` would return it.

    It has the whole history up to its moment, so that PyTorch's page shows every earlier moment too.
    Summaries of segments, such as `segsum`, show the last moment only.

    Args:
        position: number of memory events after which the snapshot is taken; None for all.
    """
    history = history_of(profile, position)
    frames = _Frames(profile)
    traces = [[_entry(action, profile, frames) for action in history.actions]]
    return {
        "segments": [_segment(each, history.requests, profile, frames) for each in history.segments],
        "device_traces": traces,
        "external_annotations": list(_annotations(profile, len(profile.trace.events[:position]))),
        "allocator_settings": _settings(profile),
    }


def step_peak(profile: Profile, step: int | None = None) -> int:
    """Number of memory events until allocated memory first reaches its peak, the event at the peak included.

    Args:
        step: number of the step whose peak is meant; None for all steps.

    Raises:
        UsageError: there is no such step.
    """
    found = phases_of(profile, step)
    return peak_position(profile, found[0].start, found[-1].stop)


def encode_snapshot(document: dict[str, Any]) -> bytes:
    """Bytes of the pickle file of a memory snapshot, as `_dump_snapshot` of PyTorch writes it."""
    return pickle.dumps(document, protocol=4)


def _entry(action: Action, profile: Profile, frames: _Frames) -> dict[str, Any]:
    """Entry of a memory snapshot's history (`device_traces`) for one action of the allocator."""
    entry: dict[str, Any] = {
        "action": action.kind.value,
        "addr": FIRST_ADDRESS + action.address,
        "size": action.num_bytes,
        "stream": action.stream,
        "time_us": action.position,
        "pool_id": _DEFAULT_POOL,
        "frames": [],
        "category": _NO_CATEGORY,
    }
    if action.request is not None:
        entry |= {
            "size": profile.requested_bytes[action.request],
            "frames": frames.of(action.request),
            "category": profile.trace.allocations[action.request].category.value,
        }
    return entry


def _segment(segment: Segment, requests: dict[int, int], profile: Profile, frames: _Frames) -> dict[str, Any]:
    """Entry of a memory snapshot for a segment and its blocks."""
    blocks = []
    for block in segment.blocks:
        address = segment.address + block.offset
        request = requests.get(address)
        blocks.append(
            {
                "address": FIRST_ADDRESS + address,
                "size": block.size,
                "requested_size": 0 if request is None else profile.requested_bytes[request],
                "state": _state(block),
                "frames": [] if request is None else frames.of(request),
            }
        )
    allocated_bytes = sum(block.size for block in segment.blocks if block.is_allocated)
    pending_bytes = sum(block.size for block in segment.blocks if block.is_pending)
    return {
        "device": 0,
        "address": FIRST_ADDRESS + segment.address,
        "total_size": segment.size,
        "allocated_size": allocated_bytes,
        "active_size": allocated_bytes + pending_bytes,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": segment.stream,
        "segment_type": segment.pool,
        "segment_pool_id": _DEFAULT_POOL,
        "is_expandable": profile.allocator_settings.expandable_segments,
        "frames": [],
        "blocks": blocks,
    }


def _state(block: SegmentBlock) -> str:
    if block.is_pending:
        return "active_pending_free"
    return "active_allocated" if block.is_allocated else "inactive"


def _annotations(profile: Profile, num_events: int) -> Iterator[dict[str, Any]]:
    """Yields the start and the end of each phase (forward, backward, …), as a snapshot has `record_function`.

    Args:
        num_events: number of memory events in the snapshot; later starts and ends are left out.
    """
    for phase in phases(profile):
        for stage, position in (("START", phase.start), ("END", phase.stop)):
            if position <= num_events:
                yield {"stage": stage, "name": phase.label, "device": 0, "time_us": position}


class _Frames:
    """Makes the stack frames of allocations for a memory snapshot, innermost first.

    Allocations with equal stacks share one list, as in PyTorch.
    """

    def __init__(self, profile: Profile) -> None:
        self._allocations = profile.trace.allocations
        self._known: dict[tuple[str, str, tuple[str, ...]], list[Frame]] = {}

    def of(self, number: int) -> list[Frame]:
        """Stack frames of an allocation: first its operator and module, then its Python lines outwards.

        Args:
            number: index of the allocation in the trace.
        """
        allocation = self._allocations[number]
        lines = allocation.stack or ((allocation.source,) if allocation.source else ())
        key = (allocation.operator, allocation.module, lines)
        if key not in self._known:
            innermost = {
                "name": allocation.operator,
                "filename": allocation.module or "(no module)",
                "line": 0,
            }
            self._known[key] = [innermost, *(_frame(line) for line in reversed(lines))]
        return self._known[key]


def _frame(line: str) -> Frame:
    """Stack frame of a snapshot for a text `file:line:function`; any other text becomes the file name."""
    found = _LINE.fullmatch(line)
    if found is None:
        return {"name": "", "filename": line, "line": 0}
    return {"name": found[3], "filename": found[1], "line": int(found[2])}


def _settings(profile: Profile) -> dict[str, Any]:
    settings = profile.allocator_settings
    return {
        "PYTORCH_CUDA_ALLOC_CONF": allocator_conf(profile.knobs.allocator),
        "max_split_size": settings.max_split_size_bytes or _UNLIMITED,
        "garbage_collection_threshold": settings.garbage_collection_threshold or 0.0,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << interval): 0 for interval in range(16)},
    }
