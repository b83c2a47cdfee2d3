"""`--search parallel=…`: which ways of training together the forms stand for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import UsageError
from autofit.settings.resolve import chosen_options, resolve_settings
from autofit.settings.tune_settings import TuneSettings


def settings(file: Path | None = None, **given: Any) -> TuneSettings:
    return resolve_settings({"model": "davenet", **given}, {}, file)


def found(search: object, nproc: int | None = None) -> list[str]:
    return [str(parallel) for parallel in settings(search=search, nproc=nproc).parallels]


@pytest.mark.parametrize(
    ("forms", "nproc", "parallels"),
    [
        ("pp,zero3+offload", 2, ["pp:2", "zero3:2+offload"]),
        ("ddp,fsdp,tp,fsdp1+grad-op", 8, ["ddp:8", "fsdp:8", "tp:8", "fsdp1:8+grad-op"]),
        ("hsdp", 8, ["hsdp:2x4", "hsdp:4x2"]),
        ("fsdp+tp", 12, ["fsdp:2,tp:6", "fsdp:3,tp:4", "fsdp:4,tp:3", "fsdp:6,tp:2"]),
        ("fsdp:8,hsdp:2x4,fsdp:4+tp:2", None, ["fsdp:8", "hsdp:2x4", "fsdp:4,tp:2"]),
        ("fsdp,fsdp:8,fsdp1:8+no-shard", 8, ["fsdp:8", "fsdp1:8+no-shard"]),
        ("ddp:1,fsdp:2,fsdp:4", None, ["ddp:1", "fsdp:2", "fsdp:4"]),
    ],
)
def test_a_kind_is_of_all_ranks_and_several_are_of_every_split_of_them(
    forms: str, nproc: int | None, parallels: list[str]
) -> None:
    assert found(f"parallel={forms}", nproc) == parallels
    assert found({"parallel": forms.split(",")}, nproc) == parallels


def test_they_stand_beside_knobs_and_are_told_as_they_could_be_typed(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        "[tune]\nnproc = 4\nsearch = {parallel = ['ddp', 'fsdp'], precision = ['fp32', 'bf16']}\n"
    )
    from_file = settings(file)
    assert from_file.searched == (("precision", ("fp32", "bf16")),)
    told = chosen_options({"model": "davenet"}, {}, file)
    assert told["search"] == "parallel=ddp,fsdp;precision=fp32,bf16"
    assert settings(search=told["search"], nproc=4) == from_file


def test_a_higher_place_decides_whether_one_is_set_or_several_are_searched(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[tune]\nsearch = {parallel = ['ddp:4', 'fsdp:4']}\n")
    assert settings(file, parallel="tp:2").parallels == ()
    file.write_text("[tune]\nparallel = 'tp:2'\n")
    searching = settings(file, search="parallel=ddp:4,fsdp:4")
    assert (len(searching.parallels), searching.setup.num_ranks) == (2, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"search": "parallel=zero"}, "--search: 'zero' is not one of ddp, fsdp"),
        ({"search": "parallel=zero:4"}, "--search: 'zero:4' is not ddp:N"),
        ({"search": "parallel=fsdp"}, "fsdp needs a number of ranks: write it as fsdp:N, or give --nproc N"),
        ({"search": "parallel=fsdp:8", "nproc": 4}, "fsdp:8 is of 8 ranks, --nproc of 4"),
        (
            {"search": "parallel=ddp,hsdp", "nproc": 7},
            "hsdp cannot be of 7 ranks, no product of 2 numbers from 2 on",
        ),
        ({"search": "parallel=ddp", "nproc": 1}, "ddp of 1: at least 2 ranks train together"),
        ({"search": "parallel=ddp", "nproc": 10**30}, "is not a whole number from 1 to 1048576"),
        ({"search": "parallel=fsdp+fsdp", "nproc": 4}, "fsdp:2,fsdp:2 names one kind of parallelism twice"),
        ({"search": "parallel=ddp+tp", "nproc": 4}, "ddp goes with no other kind"),
        (
            {"nproc": 8},
            "--nproc counts the ranks of a script, or of --search parallel=…: add --script",
        ),
        (
            {"search": "parallel=ddp:2", "parallel": "ddp:2"},
            "--parallel sets what --search parallel=… chooses",
        ),
        (
            {"search": "parallel=ddp:2", "global_batch": 64},
            "--global-batch counts the samples of one process",
        ),
        ({"search": "parallel=ddp:2", "rank": 1}, "--rank names a rank of one --parallel"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        settings(**given)


def test_on_several_nodes_shards_stay_within_one() -> None:
    compared = settings(search="parallel=fsdp,hsdp", nproc=4, nnodes=2).parallels
    assert [str(parallel) for parallel in compared] == ["fsdp:8", "hsdp:2x4"]


def test_nodes_have_as_many_ranks_each() -> None:
    assert settings(parallel="fsdp:6", nnodes=3, probe="measure").num_nodes == 3
    for given in ({"parallel": "fsdp:6"}, {"search": "parallel=ddp:8,fsdp:6"}):
        with pytest.raises(UsageError, match="--nnodes 4 has the same number of ranks on each node, and"):
            settings(**given, nnodes=4)
    with pytest.raises(UsageError, match="--nnodes is for a Ray cluster"):
        settings(parallel="fsdp:6", nnodes=2, dispatch="inline")


def test_a_script_decides_by_itself_how_it_trains_together() -> None:
    with pytest.raises(UsageError, match="a script decides that itself"):
        resolve_settings({"script": "train.py", "search": "parallel=ddp:2"}, {}, None)
