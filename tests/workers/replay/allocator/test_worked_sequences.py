"""Small sequences worked by hand, each with the exact segments and blocks that it must leave.

A step is `a=4M` (allocate, name the block a), `a@1=4M` (on stream 1), `a=4M!` (must run out of
memory), `-a` (free), `a+1` (stream 1 uses a), `wait@1` (the host waits for stream 1) or `release`
(empty_cache). A result lists the segments in the order of their addresses, separated by `|`: the pool, its
stream unless 0, and the blocks that tile it, `.` being cached and `?` waiting for other streams. Sizes are
bytes, K and M being KiB and MiB. The device does nothing before the host waits for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from autofit_workers.replay.allocator import (
    AllocatorOutOfMemory,
    AllocatorSettings,
    Block,
    CachingAllocator,
    lags,
)


@dataclass(frozen=True)
class Sequence:
    rule: str
    steps: str
    result: str
    settings: str = ""
    limit: str | None = None
    num_retries: int = 0


EXPANDABLE = "expandable_segments:True"
SEQUENCES = [
    # Rounding, pools and segments
    Sequence("the smallest block has 512 bytes", "a=1", "small a:512 .:2M-512"),
    Sequence("sizes round up to 512 bytes", "a=513", "small a:1K .:2M-1K"),
    Sequence("up to 1 MiB shares a small segment of 2 MiB", "a=1M", "small a:1M .:1M"),
    Sequence("above 1 MiB shares a large segment of 20 MiB", "a=1M+1", "large a:1M+512 .:19M-512"),
    Sequence("just under 10 MiB still shares", "a=10M-512", "large a:10M-512 .:10M+512"),
    Sequence("10 MiB has a segment of its own", "a=10M", "large a:10M"),
    Sequence("segments of one request round up to 2 MiB", "a=10M+1", "large a:10M+512 .:2M-512"),
    Sequence("small and large blocks never mix", "a=4M -a b=512K", "large .:20M | small b:512K .:2M-512K"),
    # Splitting
    Sequence("a large block that would leave exactly 1 MiB is handed out whole", "a=11M", "large a:12M"),
    Sequence(
        "a large block that would leave more than 1 MiB is split", "a=11M-512", "large a:11M-512 .:1M+512"
    ),
    Sequence("a small block is split even for 512 bytes", "a=1M b=1M-512", "small a:1M b:1M-512 .:512"),
    Sequence("the caller gets the front, at every size", "a=30M -a b=12M", "large b:12M .:18M"),
    # Best fit
    Sequence(
        "the smallest block that fits is taken, not the lowest",
        "a=30M b=12M -a -b c=12M",
        "large .:30M | large c:12M",
    ),
    Sequence(
        "among equals the lowest address is taken, not the first freed",
        "a=12M b=12M -b -a c=12M",
        "large c:12M | large .:12M",
    ),
    Sequence("blocks of another stream are not reused", "a=4M -a b@1=4M", "large .:20M | large@1 b:4M .:16M"),
    # Merging
    Sequence("a freed block merges with the cached block after it", "a=4M -a", "large .:20M"),
    Sequence(
        "a freed block merges with both neighbours", "a=2M b=2M c=2M d=2M -a -c -b", "large .:6M d:2M .:12M"
    ),
    Sequence("blocks of different segments never merge", "a=10M b=10M -a -b", "large .:10M | large .:10M"),
    # Releasing
    Sequence(
        "only segments that are cached as a whole are released",
        "a=4M b=12M c=1 -b -c release",
        "large a:4M .:16M",
    ),
    Sequence(
        "a released range of addresses is used again first",
        "a=12M b=12M -a release c=10M d=30M",
        "large c:10M | large b:12M | large d:30M",
    ),
    # The limit
    Sequence(
        "a segment may just reach the limit", "a=12M -a b=20M", "large .:12M | large b:20M", limit="32M"
    ),
    # 12 + 20 > 30: a's segment is released, then 20 <= 30
    Sequence(
        "at the limit cached segments are released and the request is retried",
        "a=12M -a b=20M",
        "large b:20M",
        limit="30M",
        num_retries=1,
    ),
    # 17 MiB need a segment of 18 MiB, and the 16 MiB beside a cannot be released
    Sequence(
        "memory beside a live block stays reserved even when another request fails",
        "a=4M b=17M!",
        "large a:4M .:16M",
        limit="30M",
        num_retries=1,
    ),
    Sequence(
        "the limit counts the whole segment, though the block would fit",
        "a=4M!",
        "",
        limit="19M",
        num_retries=1,
    ),
    Sequence(
        "release and retry empties the other pool and other streams as well",
        "a=1 b@1=12M -a -b c=32M",
        "large c:32M",
        limit="34M",
        num_retries=1,
    ),
    # roundup_power2_divisions
    # between 4 and 8 MiB, 4 divisions: 4, 5, 6, 7
    Sequence(
        "divisions round up to a step between two powers of two",
        "a=5M+1",
        "large a:6M .:14M",
        settings="roundup_power2_divisions:4",
    ),
    # 4–8 MiB in 2: 4, 6; 8–16 MiB in 1: not rounded
    Sequence(
        "divisions may differ by interval, the first holding below too",
        "a=5M b=9M c=2M+1",
        "large a:6M b:9M c:3M .:2M",
        settings="roundup_power2_divisions:[4:2,8:1]",
    ),
    # max_split_size
    Sequence(
        "a block of max_split_size or more is not spent on a smaller request",
        "a=40M -a b=12M",
        "large .:40M | large b:12M",
        settings="max_split_size_mb:30",
    ),
    Sequence(
        "a request of exactly max_split_size is oversize itself",
        "a=32M -a b=30M",
        "large b:32M",
        settings="max_split_size_mb:30",
    ),
    # 60 < 41 + 20
    Sequence(
        "an oversize request takes a block that is less than 20 MiB larger, whole",
        "a=60M -a b=41M",
        "large b:60M",
        settings="max_split_size_mb:30",
    ),
    # 60 >= 40 + 20
    Sequence(
        "an oversize request refuses a block that is 20 MiB larger",
        "a=60M -a b=40M",
        "large .:60M | large b:40M",
        settings="max_split_size_mb:30",
    ),
    Sequence(
        "max_non_split_rounding widens what an oversize request takes",
        "a=60M -a b=40M",
        "large b:60M",
        settings="max_split_size_mb:30,max_non_split_rounding_mb:25",
    ),
    # 72 + 40 > 100, so a goes; b stays cached, and this is no retry
    Sequence(
        "at the limit one oversize block that is large enough is released first",
        "a=60M b=12M -a -b c=40M",
        "large c:40M | large .:12M",
        settings="max_split_size_mb:30",
        limit="100M",
    ),
    # 78 + 60 > 100; 34 and 32 go, 12 is not oversize
    Sequence(
        "else oversize blocks are released from the largest down",
        "a=32M b=34M c=12M -a -b -c d=60M",
        "large d:60M | large .:12M",
        settings="max_split_size_mb:30",
        limit="100M",
    ),
    # 102 + 60 > 150; 36 and 34 go, and suffice
    Sequence(
        "no more oversize blocks are released than needed",
        "a=32M b=34M c=36M -a -b -c d=60M",
        "large .:32M | large d:60M",
        settings="max_split_size_mb:30",
        limit="150M",
    ),
    # 44 + 60 > 100; a's 32 go, are fewer than 60, and so b goes as well
    Sequence(
        "if the oversize blocks do not add up to the request, everything is released",
        "a=32M b=12M -a -b c=60M",
        "large c:60M",
        settings="max_split_size_mb:30",
        limit="100M",
        num_retries=1,
    ),
    Sequence(
        "a shared segment as large as max_split_size serves its first request only",
        "a=4M -a b=4M",
        "large .:20M | large b:4M .:16M",
        settings="max_split_size_mb:20",
    ),
    # large_segment_size
    Sequence(
        "large_segment_size sets the shared segment",
        "a=4M b=10M c=20M",
        "large a:4M b:10M .:18M | large c:20M",
        settings="large_segment_size_mb:32",
    ),
    # garbage_collection_threshold. At d the searches count 4: a was cached at 2, b at 3.
    # 68 - 50 = 18 too much; ages 2 and 1, average 1.5: a's 20 go, and suffice
    Sequence(
        "garbage collection releases what went unused longer than average",
        "a=20M b=24M -a c=24M -b d=30M",
        "large .:24M | large c:24M | large d:30M",
        settings="garbage_collection_threshold:0.5",
        limit="100M",
    ),
    # 68 - 45 = 23 too much: a's 20 go, then b, whose age is now the average
    Sequence(
        "garbage collection goes on until it is under the threshold",
        "a=20M b=24M -a c=24M -b d=30M",
        "large d:30M | large c:24M",
        settings="garbage_collection_threshold:0.45",
        limit="100M",
    ),
    # 122 - 104 = 18 too much; ages 3, 2 and 1 in large searches: a and b go, c stays
    Sequence(
        "a round of garbage collection takes all of average age, counting large searches only",
        "a=20M b=22M c=24M -a s=1 t=1 u=1 v=1 x=26M -b y=28M -c z=60M",
        "large .:24M | small s:512 t:512 u:512 v:512 .:2M-2K | large x:26M | large y:28M | large z:60M",
        settings="garbage_collection_threshold:0.52",
        limit="200M",
    ),
    Sequence(
        "garbage collection waits for a limit",
        "a=20M b=24M -a c=24M -b d=30M",
        "large .:20M | large .:24M | large c:24M | large d:30M",
        settings="garbage_collection_threshold:0.5",
    ),
    # expandable_segments
    Sequence(
        "an expandable segment grows by pages of 20 MiB", "a=30M", "large a:30M .:10M", settings=EXPANDABLE
    ),
    # 16 MiB are cached behind a: one more page makes 36
    Sequence(
        "an expandable segment grows from the cached block at its end",
        "a=4M b=30M",
        "large a:4M b:30M .:6M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "small requests grow a segment by pages of 2 MiB",
        "a=1M b=1M c=1M",
        "small a:1M b:1M c:1M .:1M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "every stream has its own expandable segment",
        "a=4M b@1=4M",
        "large a:4M .:16M | large@1 b:4M .:16M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "blocks of expandable segments are split even for 512 bytes",
        "a=20M-512",
        "large a:20M-512 .:512",
        settings=EXPANDABLE,
    ),
    # the 4 MiB at the end would fit better, but could grow without end
    Sequence(
        "the end of an expandable segment is used last",
        "a=4M b=6M c=6M -b d=3M",
        "large a:4M d:3M .:3M c:6M .:4M",
        settings=EXPANDABLE,
    ),
    # a's 30 MiB cover one page of 20 MiB
    Sequence(
        "release unmaps the pages that are cached completely",
        "a=30M b=30M -a release",
        "large .:10M b:30M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "unmapped pages are mapped again before the segment grows",
        "a=30M b=30M -a release c=12M",
        "large c:12M .:18M b:30M",
        settings=EXPANDABLE,
    ),
    # b ends with page 3, and covers the second half of page 2
    Sequence(
        "a page that is cached in part stays, and serves requests",
        "a=30M b=30M -b release c=8M",
        "large a:30M c:8M .:2M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "a hole is filled to its last byte",
        "a=20M b=40M c=20M -b release d=40M",
        "large a:20M d:40M c:20M",
        settings=EXPANDABLE,
    ),
    # pages 2 and 3 lie between a and c
    Sequence(
        "a hole in the middle of an expandable segment divides the snapshot",
        "a=20M b=40M c=20M -b release",
        "large a:20M | large c:20M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "release of everything leaves nothing",
        "a=30M b=1 -a -b release",
        "",
        settings=EXPANDABLE,
    ),
    # c may not have the 40 MiB, and 60 + 20 > 75: a's pages are unmapped, one comes back
    Sequence(
        "oversize blocks of expandable segments are released as pages, in the retry",
        "a=40M b=20M -a c=10M",
        "large c:10M .:10M | large b:20M",
        settings="expandable_segments:True,max_split_size_mb:32",
        limit="75M",
        num_retries=1,
    ),
    # 20 + 22 > 41, though one more page, 40 in all, would do
    Sequence(
        "the limit is compared with the segment that would be made without expandable segments",
        "a=18M b=21M!",
        "large a:18M .:2M",
        settings=EXPANDABLE,
        limit="41M",
        num_retries=1,
    ),
    # 20 + 12 <= 32, but the page has 20
    Sequence(
        "no page is mapped beyond the limit",
        "a=20M b=12M!",
        "large a:20M",
        settings=EXPANDABLE,
        limit="32M",
        num_retries=1,
    ),
    # Blocks that other streams use
    # test_record_stream of PyTorch's test/test_cuda.py: allocated on a side stream, used by the default one
    Sequence(
        "what another stream uses is not handed out while that is at work",
        "tmp@1=16 tmp+0 -tmp tmp2@1=16",
        "small@1 ?:512 tmp2:512 .:2M-1K",
    ),
    Sequence(
        "it is handed out again when that stream is done",
        "tmp@1=16 tmp+0 -tmp tmp2@1=16 wait@0 tmp3@1=16",
        "small@1 tmp3:512 tmp2:512 .:2M-1K",
    ),
    # test_record_stream_on_shifted_view there: the host waits for the stream that allocated
    Sequence(
        "to wait for its own stream does not do",
        "base@1=8 base+2 -base wait@1 again@1=8",
        "small@1 ?:512 again:512 .:2M-1K",
    ),
    Sequence("the block's own stream is no other", "a@1=12M a+1 -a b@1=12M", "large@1 b:12M"),
    Sequence(
        "every stream that uses it has to be done",
        "a=12M a+1 a+2 -a wait@1 b=12M wait@2 c=12M",
        "large c:12M | large b:12M",
    ),
    Sequence(
        "a stream that is done later than its wait is waited for again",
        "a=12M a+1 wait@1 -a b=12M",
        "large ?:12M | large b:12M",
    ),
    Sequence(
        "nobody is told before the next request",
        "a=4M b=4M a+1 -a wait@1 -b",
        "large ?:4M .:16M",
    ),
    Sequence(
        "what waits does not merge, and does when it comes back",
        "a=4M b=4M c=4M a+1 -a -b wait@1 d=2M+512",
        "large d:2M+512 .:6M-512 c:4M .:8M",
    ),
    Sequence("empty_cache waits for all streams", "a=12M a+1 b=12M b+2 -a -b release", ""),
    Sequence(
        "at the limit the host waits, and the request is retried",
        "a=12M a+1 -a b=20M",
        "large b:20M",
        limit="30M",
        num_retries=1,
    ),
    # a's 9 MiB come back to the pool, which is not searched again, so that c fails and d does not
    Sequence(
        "what comes back at the limit does not serve the request that waited for it",
        "a=9M b=9M a+1 -a c=9M! d=9M",
        "large d:9M b:9M .:2M",
        limit="20M",
        num_retries=1,
    ),
    # 60 - 50 = 10 too much, but nothing is cached; 60 + 30 <= 100
    Sequence(
        "garbage collection does not wait",
        "a=60M a+1 -a b=30M",
        "large ?:60M | large b:30M",
        settings="garbage_collection_threshold:0.5",
        limit="100M",
    ),
    Sequence(
        "an expandable segment does not grow from a block that waits",
        "a=20M a+1 -a b=30M",
        "large ?:20M b:30M .:10M",
        settings=EXPANDABLE,
    ),
    # the 20 MiB that wait lie between the hole of a's page and the end
    Sequence(
        "nor through one",
        "a=20M b=20M c=20M -a release b+1 -b d=40M",
        "large ?:20M c:20M d:40M",
        settings=EXPANDABLE,
    ),
    Sequence(
        "release waits before it unmaps",
        "a=30M a+1 -a release",
        "",
        settings=EXPANDABLE,
    ),
]


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence.rule)
def test_a_sequence_leaves_exactly_these_segments(sequence: Sequence) -> None:
    limit_bytes = None if sequence.limit is None else num_bytes(sequence.limit)
    settings = AllocatorSettings.parse(sequence.settings)
    allocator = CachingAllocator(settings, limit_bytes=limit_bytes, clock=lags)

    blocks = run(allocator, sequence.steps)

    names = {block.address: name for name, block in blocks.items()}
    segments = [
        (
            segment.pool,
            segment.stream,
            [
                (
                    names[segment.address + b.offset] if b.is_allocated else ".?"[b.is_pending],
                    b.offset,
                    b.size,
                )
                for b in segment.blocks
            ],
        )
        for segment in allocator.segments()
    ]
    assert segments == expected_segments(sequence.result)
    assert allocator.num_alloc_retries == sequence.num_retries
    assert allocator.num_ooms == sequence.steps.count("!")


def run(allocator: CachingAllocator, steps: str) -> dict[str, Block]:
    """Runs the steps, and returns the live blocks by name."""
    blocks: dict[str, Block] = {}
    for step in steps.split():
        if step == "release":
            allocator.empty_cache()
        elif step.startswith("-"):
            allocator.free(blocks.pop(step[1:]))
        elif step.startswith("wait@"):
            allocator.pending.wait(int(step.removeprefix("wait@")))
        elif "+" in step and "=" not in step:
            name, _, stream = step.partition("+")
            allocator.record_stream(blocks[name], int(stream))
        else:
            target, _, size = step.partition("=")
            name, _, stream = target.partition("@")
            if size.endswith("!"):
                with pytest.raises(AllocatorOutOfMemory):
                    allocator.malloc(num_bytes(size[:-1]), stream=int(stream or 0))
            else:
                blocks[name] = allocator.malloc(num_bytes(size), stream=int(stream or 0))
    return blocks


def expected_segments(result: str) -> list[tuple[str, int, list[tuple[str, int, int]]]]:
    segments = []
    for part in filter(None, result.split("|")):
        head, *texts = part.split()
        pool, _, stream = head.partition("@")
        offset, tiles = 0, []
        for text in texts:
            name, _, size = text.partition(":")
            tiles.append((name, offset, num_bytes(size)))
            offset += num_bytes(size)
        segments.append((pool, int(stream or 0), tiles))
    return segments


def num_bytes(text: str) -> int:
    """Evaluates sums such as 2M-512."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"([+-]?\d+)([KM]?)", text))
