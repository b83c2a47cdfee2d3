"""The compiled replay is the twin of the one in Python: equal on all events, and left out where it cannot."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import AllocatorSettings, Choice, Replay, compiled_replay, replay
from autofit_workers.replay.allocator.settings import DEFAULT_SETTINGS
from tests.workers.replay.allocator.streams import MIB, streams

ROOT = Path(__file__).parents[4]
COMPILER = os.environ.get("CC") or "cc"
SETTINGS = st.builds(
    AllocatorSettings,
    roundup_power2_divisions=st.sampled_from([0, 8]),
    large_segment_size_bytes=st.sampled_from([20 * MIB, 32 * MIB]),
)
LIMITS = st.none() | st.integers(0, 300 * MIB)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which(COMPILER.split()[0]) is None, reason="needs a C compiler"
)


def build_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_hook", ROOT / "deploy/wheel/build_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("built") / "replay.so"
    assert build_hook().compile_library(compiled_replay.SOURCE, path)
    return path


@pytest.fixture(scope="module", autouse=True)
def compiled(library: Path) -> Iterator[None]:
    """Has the library used that was built of this source, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_replay, "LIBRARY", library)
        compiled_replay._library.cache_clear()
        yield
    compiled_replay._library.cache_clear()


def both(
    events: Sequence[int],
    sizes: Sequence[int],
    *,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    limit_bytes: int | None = None,
    stop_above_bytes: int | None = None,
) -> tuple[Replay | None, Replay]:
    """Results of the compiled replay, None if it leaves the events to Python, and of the one in Python."""
    size_of = {size: settings.round_size(size) if size else 0 for size in sizes}
    found = compiled_replay.replayed(
        events,
        [size_of[size] for size in sizes],
        settings,
        limit_bytes=limit_bytes,
        stop_above_bytes=stop_above_bytes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_replay, "_library", lambda: None)
        expected = replay(
            events, sizes, settings=settings, limit_bytes=limit_bytes, stop_above_bytes=stop_above_bytes
        )
    if found is None:
        return None, expected
    return Replay(**found._asdict(), completed=found.failed_position is None), expected


@given(streams(), SETTINGS, LIMITS, LIMITS)
def test_it_gives_what_python_gives(
    step: tuple[list[int], list[int]],
    settings: AllocatorSettings,
    limit_bytes: int | None,
    stop_above_bytes: int | None,
) -> None:
    compiled, expected = both(
        *step, settings=settings, limit_bytes=limit_bytes, stop_above_bytes=stop_above_bytes
    )
    assert compiled == expected


@pytest.mark.parametrize("limit_mib", [None, 3_000, 1_500])
def test_it_gives_what_python_gives_in_long_runs_with_few_sizes(limit_mib: int | None) -> None:
    """As steps of training are: thousands of requests, whose blocks are split and merged all the time."""
    chance = random.Random(7)
    for _ in range(20):
        few = [chance.choice([512, 4096, 700_000, 3 * MIB, 11 * MIB, 47 * MIB]) for _ in range(9)]
        sizes: list[int] = []
        events: list[int] = []
        alive: list[int] = []
        for _ in range(3_000):
            if alive and chance.random() < len(alive) / 80:
                events.append(~alive.pop(chance.randrange(len(alive))))
            else:
                alive.append(len(sizes))
                events.append(len(sizes))
                sizes.append(chance.choice(few))
        compiled, expected = both(events, sizes, limit_bytes=None if limit_mib is None else limit_mib * MIB)
        assert compiled == expected


@pytest.mark.parametrize(
    ("events", "sizes"),
    [
        ([0, ~0, ~0], [MIB]),  # frees a block twice
        ([~0], [MIB]),  # frees what was not allocated
        ([1], [MIB]),  # no such request
        ([0, ~7], [MIB]),
    ],
)
def test_wrong_events_are_left_to_python(events: list[int], sizes: list[int]) -> None:
    assert (
        compiled_replay.replayed(events, sizes, DEFAULT_SETTINGS, limit_bytes=None, stop_above_bytes=None)
        is None
    )
    with pytest.raises((ValueError, IndexError)):
        replay(events, sizes)


def test_sizes_beyond_integers_of_c_are_left_to_python() -> None:
    compiled, expected = both([0, 1], [1 << 61, 1 << 61])
    assert compiled is None
    assert expected.peak_allocated_bytes == 1 << 62


def test_limits_beyond_integers_of_c_are_no_limit() -> None:
    for limit_bytes in (1 << 63, 1 << 64):
        compiled, expected = both([0], [MIB], limit_bytes=limit_bytes, stop_above_bytes=limit_bytes)
        assert compiled == expected
        assert expected.completed


def test_a_limit_below_zero_is_an_error_as_before() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        replay([0], [MIB], limit_bytes=-1)


@pytest.mark.parametrize(
    ("settings", "limit_bytes", "is_covered"),
    [
        (AllocatorSettings(), None, True),
        (AllocatorSettings(expandable_segments=True), None, False),
        (AllocatorSettings(max_split_size_bytes=32 * MIB), None, False),
        (AllocatorSettings(large_segment_size_bytes=MIB << 24), None, False),
        (AllocatorSettings(garbage_collection_threshold=0.5), None, True),  # without a limit it does nothing
        (AllocatorSettings(garbage_collection_threshold=0.5), MIB, False),
    ],
)
def test_it_has_the_rules_of_most_settings(
    settings: AllocatorSettings, limit_bytes: int | None, is_covered: bool
) -> None:
    assert compiled_replay.is_covered(settings, limit_bytes=limit_bytes) == is_covered


def test_requests_of_several_sizes_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_replay, "_numbers", None)
    found = replay([0], [4 * MIB], choices={0: Choice(0, (4 * MIB, 2 * MIB))})
    assert found.peak_allocated_bytes == 4 * MIB


# ── the library ─────────────────────────────────────────────────────────────────────────────────


def test_a_library_of_another_source_is_not_used(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_bytes(compiled_replay.SOURCE.read_bytes() + b"\n")
    assert build_hook().compile_library(source, tmp_path / "other.so")
    assert compiled_replay.load(tmp_path / "other.so") is None


@pytest.mark.parametrize("content", [b"", b"no library", None])
def test_without_a_library_python_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "broken.so").write_bytes(content)
    monkeypatch.setattr(compiled_replay, "LIBRARY", tmp_path / "broken.so")
    compiled_replay._library.cache_clear()
    try:
        assert not compiled_replay.is_covered(DEFAULT_SETTINGS, limit_bytes=None)
        assert replay([0], [MIB]).peak_reserved_bytes == 2 * MIB
    finally:
        compiled_replay._library.cache_clear()


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiler in ("no-such-compiler", "false", " ", "'"):
        monkeypatch.setenv("CC", compiler)
        assert not build_hook().compile_library(compiled_replay.SOURCE, tmp_path / "replay.so")
    assert list(tmp_path.iterdir()) == []
