"""What is to be locked: the table of pyproject.toml, options, and the arguments that a lock keeps."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.locks.configurations import chosen, configuration, configuration_of, read_configured
from autofit.locks.lock_file import LockedConfiguration, LockError

_TABLE = """
[project]
name = "mine"

[tool.autofit.lock]
tolerance = "3%"

[tool.autofit.lock.configurations.davenet-64]
model = "davenet"
batch-size = 64
gpu = ["rtx-3090", "t4"]
precision = "amp-bf16"
compile = true
largest-batch = true

[tool.autofit.lock.configurations.script]
script = "train.py"
script-arg = ["--lr", "0.1"]
"""


def _write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_table_names_what_is_locked(tmp_path: Path) -> None:
    found = read_configured(_write(tmp_path, _TABLE))
    assert found.tolerance == Decimal("0.03")
    assert list(found.configurations) == ["davenet-64", "script"]
    davenet = found.configurations["davenet-64"]
    assert (davenet.batch_size, davenet.gpus, davenet.wants_largest_batch) == (64, ("rtx-3090", "t4"), True)
    assert davenet.options == {"model": "davenet", "precision": "amp-bf16", "compile": True}


def test_the_arguments_that_a_lock_keeps_are_the_configuration_again(tmp_path: Path) -> None:
    for each in read_configured(_write(tmp_path, _TABLE)).configurations.values():
        again = configuration_of(LockedConfiguration(name=each.name, arguments=each.arguments))
        assert again.arguments == each.arguments
        assert (again.batch_size, again.gpus) == (each.batch_size, each.gpus)


def test_arguments_have_one_order() -> None:
    given = {"model": "gpt2", "batch_size": 8, "gpu": "t4", "precision": "bf16"}
    reverse = dict(reversed(given.items()))
    assert configuration("a", given).arguments == configuration("a", reverse).arguments


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_project_without_a_table_has_nothing_to_lock(tmp_path: Path, name: str) -> None:
    if name == "empty":
        _write(tmp_path, "[project]\n")
    with pytest.raises(UsageError, match="nothing is configured to be locked: add a table"):
        chosen(read_configured(tmp_path).configurations, ())


def test_names_choose_and_an_unknown_one_suggests(tmp_path: Path) -> None:
    found = read_configured(_write(tmp_path, _TABLE)).configurations
    assert [each.name for each in chosen(found, ("script",))] == ["script"]
    assert [each.name for each in chosen(found, ())] == ["davenet-64", "script"]
    with pytest.raises(UsageError, match=r"Did you mean davenet-64\?"):
        chosen(found, ("davenet-46",))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('tolerance = "much"', r"\[tool.autofit.lock\] tolerance: 'much' is not a share"),
        ("tolerence = 1", r"unknown key 'tolerence'\. Did you mean tolerance\?"),
        ("configurations = 3", r"\[tool.autofit.lock.configurations\] is not a table"),
        ("configurations.a = 3", r"configurations\.a\] is not a table"),
        ('configurations.a = {model = "gpt2", batch-syze = 2}', r"Did you mean batch-size"),
        ('configurations.a = {model = "gpt2"}', r"configurations\.a\]: no batch size"),
        ("configurations.a = {batch-size = 2}", r"configurations\.a\]: no model"),
        ('configurations.a = {model = "gpt2", batch-size = "2"}', r"batch-size: expected a whole number"),
        ('configurations.a = {model = "gpt2", batch-size = true}', r"batch-size: expected a whole number"),
        ('configurations.a = {model = "gpt2", batch-size = 2, gpu = "t5"}', r"--gpu: .*t5"),
        ('configurations.a = {model = "gpt2", batch-size = 2, largest-batch = true}', r"needs a card"),
        ('configurations.a = {model = "gpt2", batch-size = 2, max-batch = 9}', r"unknown key 'max-batch'"),
        (
            'configurations.a = {model = "gpt2", batch-size = 2, precision = "fp3"}',
            r"\.a\]: --precision: .*fp3",
        ),
        ("=", r"pyproject.toml is not TOML"),
    ],
)
def test_a_wrong_table_is_named_in_a_sentence(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_configured(_write(tmp_path, f"[tool.autofit.lock]\n{table}\n"))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "arguments",
    [("davenet",), ("--modle", "davenet"), ("--model",), ("--model", "davenet", "--batch-size", "x")],
)
def test_arguments_of_a_lock_that_are_none_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(LockError, match="the lock's arguments of a are wrong"):
        configuration_of(LockedConfiguration(name="a", arguments=arguments))
