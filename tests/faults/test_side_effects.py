"""Each way in which a script could have an effect outside is gone, and has none, while it is predicted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from autofit_workers.process.boundary import landlock
from autofit_workers.spec.trace import UNPROTECTED
from tests.faults.side_effects import Found, can_unshare, catalogue, not_as_expected, read, table

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # the first test waits for all of them

IS_ROOT = os.geteuid() == 0
OF_ROOT = {
    "ordinary user": ("--user", "1000"),
    "overlay": ("--on", "overlay"),
    "tmpfs": ("--on", "tmpfs"),
    "read-only": ("--on", "read-only"),
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "denied": ("--denied",),
    **(OF_ROOT if IS_ROOT else {}),
}
_MISSING = "this machine has no boundary: "


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[Found]]]:
    """The catalogue, tried in each of the settings."""
    with ThreadPoolExecutor(2) as pool:
        yield {setting: pool.submit(_tried, options) for setting, options in SETTINGS.items()}


def _tried(options: tuple[str, ...]) -> Found:
    script = Path(__file__).with_name("side_effects.py")
    command = [sys.executable, "-P", script, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def landlock_version() -> int:
    try:
        return landlock.version()
    except OSError:
        return 0


def _require_namespaces(*options: str) -> None:
    if not can_unshare(*options):
        pytest.skip(f"unshare {' '.join(options)} fails: nothing here can have such namespaces")


@pytest.mark.parametrize("setting", ["as it is", *OF_ROOT])
def test_every_way_is_gone_and_none_changes_anything(runs: dict[str, Future[Found]], setting: str):
    if setting not in SETTINGS:
        pytest.skip("file systems are mounted and users changed by root alone")
    _require_namespaces("--mount", "--pid", "--fork") if IS_ROOT else _require_namespaces("--user")
    found = runs[setting].result()
    assert (found.verdict, found.error, found.note) == ("TRACED", "", ""), table(found)
    is_root = IS_ROOT and setting != "ordinary user"
    assert not_as_expected(found, is_root=is_root, is_read_only=setting == "read-only") == []
    assert [each for each in found.tried if each.changed] == []
    assert (found.unexplained, found.left) == ((), ())


def test_where_namespaces_are_denied_the_note_says_so_and_the_ways_that_take_effect_are_known(
    runs: dict[str, Future[Found]],
):
    _require_namespaces("--user", "--map-root-user", "--mount", "--pid", "--fork")
    if not IS_ROOT:
        pytest.skip("of root it is known what takes effect")
    if landlock_version() < landlock.SCOPES:
        pytest.skip("this kernel's Landlock has no rules for signals: more takes effect")
    found = runs["denied"].result()
    assert (found.verdict, found.error) == ("TRACED", ""), table(found)
    assert found.note.startswith(UNPROTECTED)
    ways = {way.name: way for way in catalogue()}
    tried = [each for each in found.tried if "timing" not in ways[each.way].flags]
    # A way that no longer takes effect loses its `escapes` in `side_effects_ways.txt`.
    expected = {each.way for each in tried if "escapes" in ways[each.way].flags}
    assert {each.way for each in tried if each.changed} == expected
    assert (found.unexplained, found.left) == ((), ())


def test_there_are_enough_ways_and_each_has_a_name_of_its_own():
    names = [way.name for way in catalogue()]
    assert len(names) >= 120
    assert len(names) == len(set(names))
