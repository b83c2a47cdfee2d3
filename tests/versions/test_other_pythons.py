"""Other Pythons: found by version or path, and each run with a release of PyTorch that has wheels for it."""

from __future__ import annotations

import sys

from tests.versions.installations import RELEASES, WITH_THE_OWN
from tests.versions.other_pythons import RELEASE_OF, Python, found, requirements
from tests.versions.table import pairs

VERSION = "{}.{}".format(*sys.version_info)


def test_a_python_is_found_by_its_path_and_its_version_is_asked():
    assert found(sys.executable) == Python(sys.executable, VERSION)
    assert found("9.9") is None
    assert found("/usr/bin/false") is None


def test_requirements_are_all_but_those_of_one_release_of_pytorch():
    names = {each.split(">")[0].split("[")[0] for each in requirements()}
    assert {"ray", "transformers", "peft", "pytest"} <= names
    assert not names & {"torch", "torchvision", "timm", "autofit-gpu"}


def test_without_a_wish_every_release_runs_here_and_every_other_python_runs_one(capsys):
    listed = list(pairs(None, None))
    assert [release for release, python in listed if python is None] == list(RELEASES)
    others = {python.version: release for release, python in listed if python is not None}
    missing = capsys.readouterr().out.splitlines()
    assert others.items() <= RELEASE_OF.items()
    assert missing == [f"Python {name} is not installed here" for name in RELEASE_OF if name not in others]
    assert set(RELEASE_OF.values()) <= WITH_THE_OWN.keys()


def test_wishes_narrow_the_pairs():
    assert list(pairs(["2.8"], None)) == [("2.8", None)]
    python = Python(sys.executable, VERSION)
    assert list(pairs(["2.8", "2.13"], [sys.executable])) == [("2.8", python), ("2.13", python)]
    assert list(pairs(None, [sys.executable])) == [(RELEASE_OF.get(VERSION, "2.13"), python)]
