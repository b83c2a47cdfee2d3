"""The compiled twin of the loop in `replay`, where it was built: see `compiled_replay.c`.

It takes a tenth of the time. It is built with the wheel, or with an editable installation, if there is a C
compiler; without it the same answers take longer. It replays what most steps are: one stream, segments of
fixed size, and no requests that try several sizes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from autofit_workers.replay.allocator.settings import (
    BLOCK_BYTES,
    EXACT_SEGMENT_REQUEST_BYTES,
    SEGMENT_STEP_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)

# Not `.so`: Python would take it for a module of its own.
LIBRARY = Path(__file__).with_name("_compiled_replay.lib")
SOURCE = Path(__file__).with_name("compiled_replay.c")

_STOPPED, _REFUSED = 1, 2  # as in the source
_LARGEST_SEGMENT_BYTES = 1 << 40  # of requests that share one
_MOST_BYTES = 1 << 61  # of all requests, so that no sum exceeds an integer of C


class _Settings(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "block_bytes",
            "small_request_bytes",
            "small_segment_bytes",
            "exact_segment_request_bytes",
            "large_segment_bytes",
            "segment_step_bytes",
            "limit_bytes",
            "stop_above_bytes",
        )
    ]


class _Result(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "peak_allocated_position",
            "num_alloc_retries",
            "failed_position",
        )
    ]


class Found(NamedTuple):
    """Result of a compiled replay; its fields are those of `replay.Replay`."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_position: int
    num_alloc_retries: int
    failed_position: int | None


def is_compiled() -> bool:
    """Whether the compiled replay was built here, and is of this source."""
    return _library() is not None


def is_covered(settings: AllocatorSettings, *, limit_bytes: int | None) -> bool:
    """Whether the compiled replay is there, and has the rules that allocator settings ask for."""
    return (
        not settings.expandable_segments
        and settings.max_split_size_bytes is None
        and settings.large_segment_size_bytes <= _LARGEST_SEGMENT_BYTES
        and (settings.garbage_collection_threshold is None or limit_bytes is None)
        and is_compiled()
    )


def replayed(
    events: Sequence[int],
    rounded: Sequence[int],
    settings: AllocatorSettings,
    *,
    limit_bytes: int | None,
    stop_above_bytes: int | None,
) -> Found | None:
    """Replays events, as `replay.replay` does; None if that function has to, as it says which event is wrong.

    Args:
        events: `i` allocates `rounded[i]` bytes, `~i` frees them.
        rounded: bytes of each request, rounded as the allocator does; 0 where no block is made.
        settings: settings of the allocator, which `is_covered`.
        limit_bytes, stop_above_bytes: as for `replay.replay`.
    """
    library = _library()
    if library is None or sum(rounded) > _MOST_BYTES or (limit_bytes or 0) < 0:
        return None
    result = _Result()
    ending = library.autofit_replay(
        *_numbers(events),
        *_numbers(rounded),
        ctypes.byref(
            _Settings(
                BLOCK_BYTES,
                SMALL_REQUEST_BYTES,
                SMALL_SEGMENT_BYTES,
                EXACT_SEGMENT_REQUEST_BYTES,
                settings.large_segment_size_bytes,
                SEGMENT_STEP_BYTES,
                sys.maxsize if limit_bytes is None else min(limit_bytes, sys.maxsize),
                sys.maxsize if stop_above_bytes is None else min(stop_above_bytes, sys.maxsize),
            )
        ),
        ctypes.byref(result),
    )
    if ending == _REFUSED:
        return None
    return Found(
        result.peak_allocated_bytes,
        result.peak_reserved_bytes,
        result.peak_allocated_position,
        result.num_alloc_retries,
        result.failed_position if ending == _STOPPED else None,
    )


def _numbers(values: Sequence[int]) -> tuple[ctypes.Array[ctypes.c_int64], int]:
    """Numbers as an array of C, and how many they are."""
    numbers = array("q", values)
    return (ctypes.c_int64 * len(numbers)).from_buffer(numbers), len(numbers)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled library; None if it was not built, or of another source, or not for this platform."""
    return load(LIBRARY)


def load(path: Path) -> ctypes.CDLL | None:
    """Loads a compiled library; None if it is none that can be used here, or is of another source."""
    try:
        library = ctypes.CDLL(str(path))
        digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest().encode()
        made_of = (ctypes.c_char * (len(digest) + 1)).in_dll(library, "autofit_replay_source")
        if made_of.value != digest:
            return None
        library.autofit_replay.restype = ctypes.c_int
        library.autofit_replay.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
    except (OSError, ValueError, AttributeError):
        return None
    return library
