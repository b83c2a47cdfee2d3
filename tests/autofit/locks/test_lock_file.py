"""The file of a lock: read as it was written, the same bytes each time, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import StorageError, UsageError
from autofit.locks.lock_file import (
    LOCK_SCHEMA,
    Lock,
    LockedConfiguration,
    LockedHolder,
    LockedPeak,
    LockError,
    lock_text,
    parse_lock,
    read_lock,
    read_lock_if_any,
    require_name,
    write_lock,
)

_HOLDERS = (
    LockedHolder(
        module="layers.*.attn", line="model.py:12", code='x = f("é\\n\t")  # [x]', num_bytes=1 << 33
    ),
    LockedHolder(module="", line="(optimizer)", num_bytes=7),
)


def _peak(**changed: object) -> LockedPeak:
    peak = LockedPeak(
        torch="2.13.0", gpu="t4", likely_bytes=10, high_bytes=12, allocated_bytes=9, parameters_bytes=2,
        activations_bytes=3, largest_batch=169, step_seconds=0.0125, other_bytes=1, holders=_HOLDERS,
    )  # fmt: skip
    return dataclasses.replace(peak, **changed)


def _lock(*configurations: LockedConfiguration) -> Lock:
    return Lock(configurations={each.name: each for each in configurations})


_NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
_SIZES = st.integers(0, 1 << 50)


@given(
    name=_NAMES,
    arguments=st.lists(st.text(st.characters(exclude_categories=("C",))), max_size=3),
    code=st.text(st.characters(exclude_categories=("Cs",)), max_size=30).filter(
        lambda text: "\r" not in text
    ),
    size=_SIZES,
)
def test_a_lock_is_read_as_it_was_written(name: str, arguments: list[str], code: str, size: int) -> None:
    holder = LockedHolder(module=name, line=f"{name}.py:1", code=code, num_bytes=size)
    lock = _lock(
        LockedConfiguration(name=name, arguments=tuple(arguments), peaks=(_peak(holders=(holder,)),)),
        LockedConfiguration(
            name=name + "-2", peaks=(_peak(largest_batch=None, step_seconds=None, holders=()),)
        ),
    )
    text = lock_text(lock)
    assert parse_lock(text) == lock
    assert lock_text(parse_lock(text)) == text


def test_the_order_in_which_a_lock_was_put_together_does_not_show() -> None:
    peaks = _peak(torch="2.6.0"), _peak(), _peak(gpu="a100-40g")
    first = _lock(LockedConfiguration(name="b", peaks=peaks), LockedConfiguration(name="a"))
    other = _lock(LockedConfiguration(name="a"), LockedConfiguration(name="b", peaks=peaks[::-1]))
    assert lock_text(first) == lock_text(other)
    read = parse_lock(lock_text(first)).configurations["b"].peaks
    assert [peak.place for peak in read] == [("2.6", "t4"), ("2.13", "a100-40g"), ("2.13", "t4")]


def test_a_holder_is_a_line_of_its_own_for_diffs() -> None:
    text = lock_text(_lock(LockedConfiguration(name="a", peaks=(_peak(),))))
    grown = dataclasses.replace(_HOLDERS[0], num_bytes=3)
    changed = lock_text(_lock(LockedConfiguration(name="a", peaks=(_peak(holders=(grown, _HOLDERS[1])),))))
    differing = [
        (before, after)
        for before, after in zip(text.splitlines(), changed.splitlines(), strict=True)
        if before != after
    ]
    ((before, after),) = differing
    assert "bytes = 8589934592" in before
    assert "bytes = 3" in after


def test_a_peak_replaces_the_one_of_its_release_and_card() -> None:
    configuration = LockedConfiguration(name="a", peaks=(_peak(), _peak(gpu="h200")))
    changed = configuration.with_peak(_peak(torch="2.13.1", likely_bytes=11))
    assert len(changed.peaks) == 2
    found = changed.peak("2.13.2", "t4")
    assert found is not None
    assert (found.torch, found.likely_bytes) == ("2.13.1", 11)
    assert changed.peak("2.12.0", "t4") is None


def test_an_unknown_name_suggests_a_similar_one() -> None:
    lock = _lock(LockedConfiguration(name="davenet-64"))
    with pytest.raises(LockError, match=r"no configuration 'davent-64'\. Did you mean davenet-64\?"):
        lock.configuration("davent-64")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'schema = "autofit.lock/2"',
            r"of schema autofit\.lock/2, and this autofit reads autofit\.lock/1",
        ),
        ('schema = "autofit.tune/1"', r"is no lock, as it does not say schema"),
        ("", r"is no lock"),
        ("schema = 3", r"is no lock"),
        ("schema = ", r"is not TOML"),
        (b"\xff\xfe", r"is not UTF-8 text"),
        (f'schema = "{LOCK_SCHEMA}"\nconfigurations = 3', r"is damaged \(.*3 is not of type dict\)"),
        (f'schema = "{LOCK_SCHEMA}"\n[configurations.a]\npeaks = 3', r"damaged"),
        (f'schema = "{LOCK_SCHEMA}"\n[configurations.a]\narguments = "--model"', r"damaged \(a: "),
        (f'schema = "{LOCK_SCHEMA}"\n[[configurations.a.peaks]]\ntorch = "2.13.0"', r"damaged \(a: .*lacks"),
        (f'schema = "{LOCK_SCHEMA}"\n[configurations." "]', r"damaged"),
        (lock_text(_lock(LockedConfiguration(name="a", peaks=(_peak(likely_bytes=-1),)))), r"negative"),
        (lock_text(_lock(LockedConfiguration(name="a", peaks=(_peak(), _peak())))), r"two peaks"),
        ("x = 1\n" * 800_000, r"is larger than 4096 KiB"),
    ],
)
def test_what_is_no_lock_is_refused_in_a_sentence(text: str | bytes, said: str) -> None:
    with pytest.raises(LockError, match=said) as caught:
        parse_lock(text, "memory.lock.toml")
    assert caught.value.message.startswith("memory.lock.toml")
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_a_lock_that_is_missing_says_what_writes_it(tmp_path: Path) -> None:
    missing = tmp_path / "memory.lock.toml"
    with pytest.raises(LockError, match=r"there is no lock .*: write it with `autofit lock`"):
        read_lock(missing)
    assert read_lock_if_any(missing) == Lock()
    with pytest.raises(LockError, match="cannot read"):
        read_lock(tmp_path)


def test_a_write_that_fails_leaves_the_former_lock_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.lock.toml"
    former = _lock(LockedConfiguration(name="a", peaks=(_peak(),)))
    write_lock(path, former)
    with pytest.raises(StorageError):
        write_lock(tmp_path / "missing" / "memory.lock.toml", former)
    unwritable = _lock(LockedConfiguration(name="a", peaks=(_peak(step_seconds=object()),)))
    with pytest.raises(ValueError, match="convert"):
        write_lock(path, unwritable)
    assert read_lock(path) == former
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 300, "\x1b[2J"])
def test_a_name_that_no_terminal_shows_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a configuration"):
        require_name(name)
