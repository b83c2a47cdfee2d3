"""Settings of PyTorch's CUDA caching allocator that `PYTORCH_ALLOC_CONF` can change.

The constants, defaults and accepted values are those of `c10/core/AllocatorConfig.h` and `.cpp` in
PyTorch 2.11–2.15.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.knobs.allocator import allocator_conf
from autofit_workers.spec.pythons import Self

MIB = 1 << 20

BLOCK_BYTES = 512
"""Every block's size is a multiple of this, in bytes."""
SMALL_REQUEST_BYTES = MIB
"""Largest request in bytes that the small pool serves."""
SMALL_SEGMENT_BYTES = 2 * MIB
EXACT_SEGMENT_REQUEST_BYTES = 10 * MIB
"""Smallest request in bytes that gets a segment of its own instead of one to share."""
SEGMENT_STEP_BYTES = 2 * MIB
"""Segments for a single request are rounded up to a multiple of this, in bytes."""
NUM_ROUNDUP_INTERVALS = 16
"""Number of sizes for which `roundup_power2_divisions` may differ: 1–2 MiB, 2–4 MiB, … and 32 GiB up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """Settings of PyTorch's allocator that change which block a request gets or how large it is.

    Attributes:
        max_split_size_bytes: blocks of this size and above are neither split nor given to smaller
            requests; None, for no such bound.
        roundup_power2_divisions: number of equal steps between two powers of two; requests are rounded
            up to the next step, and 0 or 1 round to 512 B only. One number, or one for each of the intervals
            1–2 MiB, 2–4 MiB, …, 32 GiB and above, the first holding for smaller requests too.
        garbage_collection_threshold: fraction of the memory limit above which cached segments
            that have long been unused are released before a new one is made.
        large_segment_size_bytes: size of the segments that requests between 1 and 10 MiB share,
            and of the large pool's pages where segments are expandable.
        max_non_split_rounding_bytes: a block of `max_split_size_bytes` or more serves only requests
            that are smaller than it by less than this; None for the large segment's size.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    roundup_power2_divisions: int | tuple[int, ...] = 0
    garbage_collection_threshold: float | None = None
    large_segment_size_bytes: int = 20 * MIB
    max_non_split_rounding_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for values that PyTorch would refuse."""
        segment_bytes = self.large_segment_size_bytes
        if segment_bytes <= EXACT_SEGMENT_REQUEST_BYTES or segment_bytes % MIB:
            raise ValueError(f"large_segment_size must be whole MiB above 10, got {segment_bytes} bytes")
        for name in ("max_split_size", "max_non_split_rounding"):
            num_bytes: int | None = getattr(self, f"{name}_bytes")
            if num_bytes is not None and num_bytes < segment_bytes:
                raise ValueError(
                    f"{name} must be at least large_segment_size, {segment_bytes} bytes, got {num_bytes}"
                )
        threshold = self.garbage_collection_threshold
        if threshold is not None and not 0 < threshold < 1:
            raise ValueError(f"garbage_collection_threshold must lie between 0 and 1, got {threshold}")
        divisions = self.roundup_power2_divisions
        if isinstance(divisions, int):
            divisions = (divisions,) * NUM_ROUNDUP_INTERVALS
        if len(divisions) != NUM_ROUNDUP_INTERVALS or any(n < 0 or n & (n - 1) for n in divisions):
            raise ValueError(
                "roundup_power2_divisions must be a power of two (0 for no rounding), or "
                f"{NUM_ROUNDUP_INTERVALS} of them, got {self.roundup_power2_divisions}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads allocator settings from a value of `PYTORCH_ALLOC_CONF` (or `PYTORCH_CUDA_ALLOC_CONF`).

        Options about pinned host memory, locking and graph capture leave the device's memory as
        it is, and are accepted without effect.

        Raises:
            ValueError: for text that PyTorch refuses, misreads or would not obey, and for options
                that this model does not cover.
        """
        compact = "".join(text.split())
        values: dict[str, Any] = {}
        position = 0
        while position < len(compact):
            match = _OPTION.match(compact, position)
            if match is None:
                raise ValueError(
                    f"cannot read the allocator settings from {compact[position:]!r} on: write option:value, "
                    "separated by commas, as in 'expandable_segments:True,max_split_size_mb:128'"
                )
            position = match.end()
            key, value = match.groups()
            if key in _READERS:
                field, read = _READERS[key]
                values[field] = read(key, value)
            elif key not in _WITHOUT_EFFECT and (key, value) != ("backend", "native"):
                known = ", ".join(sorted(_READERS))
                raise ValueError(
                    f"the allocator setting {key}:{value} is unknown or not modelled: leave it out; "
                    f"modelled are {known}"
                )
        return cls(**values)

    @classmethod
    def of_knob(cls, allocator: str) -> Self:
        """Returns the settings for a value of autofit's option `--allocator`, such as `max_split:128`."""
        return cls.parse(allocator_conf(allocator))

    def round_size(self, num_bytes: int) -> int:
        """Size in bytes of the smallest block that a request of `num_bytes` accepts."""
        divisions = self.roundup_power2_divisions
        if isinstance(divisions, tuple):
            interval = num_bytes.bit_length() - MIB.bit_length()
            divisions = divisions[min(max(interval, 0), NUM_ROUNDUP_INTERVALS - 1)]
        step = BLOCK_BYTES
        if divisions > 1 and num_bytes > BLOCK_BYTES * divisions:
            step = (1 << (num_bytes.bit_length() - 1)) // divisions
        return max(BLOCK_BYTES, -(-num_bytes // step) * step)

    def segment_bytes(self, size: int) -> int:
        """Size in bytes of the segment that is made for a block of `size` bytes."""
        if size <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < EXACT_SEGMENT_REQUEST_BYTES:
            return self.large_segment_size_bytes
        return -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES

    @property
    def non_split_rounding_bytes(self) -> int:
        """Value of `max_non_split_rounding_bytes`; the size of a large segment if that is None."""
        if self.max_non_split_rounding_bytes is None:
            return self.large_segment_size_bytes
        return self.max_non_split_rounding_bytes


DEFAULT_SETTINGS = AllocatorSettings()

_OPTION = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"{key} must be True or False (PyTorch wants the capital), got {value!r}")
    return value == "True"


def _integer(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{key} takes whole numbers, got {value!r}")
    return int(value)


def _mebibytes(key: str, value: str) -> int:
    return _integer(key, value) * MIB


def _fraction(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{key} must be a number between 0 and 1, got {value!r}") from None


def _divisions(key: str, value: str) -> int | tuple[int, ...]:
    """Reads `roundup_power2_divisions`: a number, such as `8`, or one for each size, `[256:8,512:4,>:1]`.

    The second form means: 8 divisions from 256 MiB, 4 from 512 MiB, and 1 for larger sizes.
    """
    if not value.startswith("["):
        num_divisions = _integer(key, value)
        if num_divisions == 0:
            raise ValueError(f"{key}:0 is refused by PyTorch: leave the option out for no rounding")
        return num_divisions
    divisions = [0] * NUM_ROUNDUP_INTERVALS
    last = 0
    for position, entry in enumerate(value[1:-1].split(",")):
        boundary, _, number = entry.partition(":")
        num_divisions = _integer(key, number)
        if boundary == ">":
            divisions[last + 1 :] = [num_divisions] * (NUM_ROUNDUP_INTERVALS - last - 1)
            continue
        boundary_mb = _integer(key, boundary)
        if boundary_mb == 0 or boundary_mb & (boundary_mb - 1):
            raise ValueError(f"the boundaries of {key} must be powers of two in MiB, got {boundary}")
        last = min(boundary_mb.bit_length() - 1, NUM_ROUNDUP_INTERVALS - 1)
        if position == 0:
            divisions[:last] = [num_divisions] * last
        divisions[last] = num_divisions
    return tuple(divisions)


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _boolean),
    "max_split_size_mb": ("max_split_size_bytes", _mebibytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _fraction),
    "large_segment_size_mb": ("large_segment_size_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
}

_WITHOUT_EFFECT = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
    }
)
