from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import AllocatorSettings

MIB = 1 << 20

ACCEPTED = {
    "": AllocatorSettings(),
    "backend:native": AllocatorSettings(),
    "pinned_use_background_threads:True": AllocatorSettings(),
    "expandable_segments:True": AllocatorSettings(expandable_segments=True),
    "expandable_segments:False,": AllocatorSettings(),
    " max_split_size_mb : 128 , expandable_segments : True ": AllocatorSettings(
        max_split_size_bytes=128 * MIB, expandable_segments=True
    ),
    "garbage_collection_threshold:0.8": AllocatorSettings(garbage_collection_threshold=0.8),
    "max_split_size_mb:40,large_segment_size_mb:32": AllocatorSettings(
        max_split_size_bytes=40 * MIB, large_segment_size_bytes=32 * MIB
    ),
    "max_non_split_rounding_mb:25": AllocatorSettings(max_non_split_rounding_bytes=25 * MIB),
    "roundup_power2_divisions:8": AllocatorSettings(roundup_power2_divisions=8),
    "roundup_power2_divisions:[256:8,1024:4,>:1]": AllocatorSettings(
        roundup_power2_divisions=(8, 8, 8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1)
    ),
    "roundup_power2_divisions:[1:0,65536:2]": AllocatorSettings(roundup_power2_divisions=(0,) * 15 + (2,)),
}
REFUSED = {
    "expandable_segments:true": "must be True or False",
    "expandable_segments": "cannot read",
    "max_split_size_mb:19": "at least large_segment_size",
    "max_split_size_mb:40,large_segment_size_mb:50": "at least large_segment_size",
    "max_non_split_rounding_mb:19": "at least large_segment_size",
    "large_segment_size_mb:10": "above 10",
    "garbage_collection_threshold:0": "between 0 and 1",
    "garbage_collection_threshold:1.0": "between 0 and 1",
    "garbage_collection_threshold:high": "between 0 and 1",
    "roundup_power2_divisions:3": "power of two",
    "roundup_power2_divisions:0": "leave the option out",
    "roundup_power2_divisions:[64:3]": "power of two",
    "roundup_power2_divisions:[65:4]": "powers of two in MiB",
}
# PyTorch reads a number up to the first other character, wraps negative ones round, leaves options of
# other devices to them, and takes limits as settings.
REFUSED_HERE_ALONE = {
    "max_split_size_mb:40MB": "whole numbers",
    "max_split_size_mb:-1": "whole numbers",
    "roundup_power2_divisions:[64]": "whole numbers",
    "max_split_sized_mb:128": "unknown or not modelled",
    "backend:cudaMallocAsync": "unknown or not modelled",
    "per_process_memory_fraction:0.5": "unknown or not modelled",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_valid_text_gives_these_settings(text: str) -> None:
    assert AllocatorSettings.parse(text) == ACCEPTED[text]


@pytest.mark.parametrize("text", REFUSED | REFUSED_HERE_ALONE)
def test_a_bad_text_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=(REFUSED | REFUSED_HERE_ALONE)[text]):
        AllocatorSettings.parse(text)


def test_pytorch_accepts_and_refuses_the_same_texts() -> None:
    """In a process of its own: PyTorch's settings are global."""
    script = """
import json, sys, torch
def accepts(text):
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (ValueError, RuntimeError):
        return False
    return True
print(json.dumps([text for text in json.load(sys.stdin) if accepts(text)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([*ACCEPTED, *REFUSED]),
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout) == list(ACCEPTED)


@pytest.mark.parametrize(
    ("divisions", "num_bytes", "size"),
    [
        (0, 1, 512),
        (0, 512, 512),
        (0, 513, 1024),
        (4, 1200, 1536),  # up to 4 · 512 bytes the step is 512
        (4, 5 * MIB, 5 * MIB),
        (4, 5 * MIB + 1, 6 * MIB),
        (4, 7 * MIB + 1, 8 * MIB),
        (4, 8 * MIB, 8 * MIB),
        (1, 5 * MIB + 1, 5 * MIB + 512),
        ((2, 0, 4) + (0,) * 13, MIB + MIB // 4, MIB + MIB // 2),
        ((2, 0, 4) + (0,) * 13, MIB // 2 + 1, MIB // 2 + MIB // 4),
        ((2, 0, 4) + (0,) * 13, 2 * MIB + 1, 2 * MIB + 512),
        ((0,) * 15 + (2,), (96 << 30) + 1, 128 << 30),
    ],
)
def test_a_request_rounds_up_to_this_size(
    divisions: int | tuple[int, ...], num_bytes: int, size: int
) -> None:
    assert AllocatorSettings(roundup_power2_divisions=divisions).round_size(num_bytes) == size


@given(st.integers(1, 1 << 40), st.sampled_from([0, 1, 2, 4, 16, 64]))
def test_rounding_is_tight_and_settles(num_bytes: int, divisions: int) -> None:
    settings = AllocatorSettings(roundup_power2_divisions=divisions)

    size = settings.round_size(num_bytes)

    assert size >= num_bytes
    assert size % 512 == 0
    assert settings.round_size(size) == size
    assert size - num_bytes < max(512, num_bytes / max(divisions, 2))


@pytest.mark.parametrize("divisions", [-1, 3, (2,), (0,) * 15 + (6,)])
def test_divisions_that_are_no_power_of_two_are_refused(divisions: int | tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="power of two"):
        AllocatorSettings(roundup_power2_divisions=divisions)
