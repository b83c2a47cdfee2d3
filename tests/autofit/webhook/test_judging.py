"""Judgements of pods, from locks: on a named card, by memory, of several GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autofit.hardware.budget import budget_of, make_budget
from autofit.hardware.gpus import find_gpu
from autofit.webhook.judging import Judged, Judgement, judge
from autofit.webhook.kept_locks import KeptLocks
from autofit.webhook.review import review_of
from tests.autofit.webhook.reviews import GIB, lock_in, peak, review, template

T4, L4 = {"nvidia.com/gpu.product": "Tesla-T4"}, {"nvidia.com/gpu.product": "NVIDIA-L4"}
USABLE_OF_T4 = budget_of(find_gpu("t4")).usable_bytes / GIB


def kept(*paths: Path) -> KeptLocks:
    said: list[str] = []
    locks = KeptLocks(paths, log=said.append)
    locks.refresh()
    assert said == []
    return locks


def judged(
    locks: KeptLocks, manifest: dict[str, Any], kind: str = "Pod", operation: str = "CREATE"
) -> Judged:
    return judge(review_of(json.dumps(review(kind, manifest, operation=operation)).encode()), locks)


@pytest.mark.parametrize(
    ("likely", "high", "expected"),
    [
        (1, USABLE_OF_T4 - 0.01, Judgement.FITS),
        (1, USABLE_OF_T4 + 0.01, Judgement.UNSURE),
        (15, 15.5, Judgement.DOES_NOT_FIT),
    ],
)
def test_the_high_end_decides_what_fits_and_the_likely_one_what_does_not(
    tmp_path: Path, likely: float, high: float, expected: Judgement
) -> None:
    locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", peak("t4", likely, high)))
    answer = judged(locks, template("my-gpt", selector=T4))
    assert answer.judgement is expected
    assert bool(answer.reason) == bool(answer.advice) == (expected is not Judgement.FITS)


def test_a_card_with_the_memory_that_is_advised_fits(tmp_path: Path) -> None:
    locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", peak("t4", 18, 20)))
    advice = judged(locks, template("my-gpt", selector=T4)).advice
    found = re.search(r"nvidia\.com/gpu\.memory above (\d+)", advice)
    assert found is not None
    terms: list[dict[str, str | list[str]]] = [
        {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": [found[1]]}
    ]
    assert judged(locks, template("my-gpt", terms=terms)).judgement is Judgement.FITS
    terms[0]["values"] = [str(int(found[1]) - 2)]
    assert judged(locks, template("my-gpt", terms=terms)).judgement is Judgement.UNSURE


def test_the_worst_of_several_cards_and_pods_decides(tmp_path: Path) -> None:
    locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", peak("t4", 16, 16.5), peak("l4", 16, 16.5)))
    assert judged(locks, template("my-gpt", selector=L4)).judgement is Judgement.FITS
    terms: list[dict[str, str | list[str]]] = [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "Tesla-T4"]}
    ]
    answer = judged(locks, template("my-gpt", terms=terms))
    assert answer.judgement is Judgement.DOES_NOT_FIT
    assert answer.reason.startswith("my-gpt does not fit on t4: it likely needs 16.0")
    groups = [{"template": template("my-gpt", selector=L4)}, {"template": template("my-gpt", selector=T4)}]
    assert (
        judged(locks, {"spec": {"workerGroupSpecs": groups}}, "RayCluster").judgement
        is Judgement.DOES_NOT_FIT
    )


def test_the_largest_peak_of_all_releases_of_pytorch_decides(tmp_path: Path) -> None:
    peaks = (peak("t4", 2, 3, torch="2.12.0"), peak("t4", 15, 15.5, torch="2.13.0"))
    locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", *peaks))
    assert judged(locks, template("my-gpt", selector=T4)).judgement is Judgement.DOES_NOT_FIT


def test_ranks_leave_room_for_nccl(tmp_path: Path) -> None:
    alone = make_budget(find_gpu("t4").total_bytes, architecture="sm_75", card="t4").usable_bytes / GIB
    of_script = ("--script", "train.py", "--nproc", "8")
    for arguments, expected in (
        ((), Judgement.FITS),
        (("--parallel", "ddp:8"), Judgement.UNSURE),
        (of_script, Judgement.UNSURE),
    ):
        locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", peak("t4", 2, alone - 0.05), arguments=arguments))
        assert judged(locks, template("my-gpt", selector=T4)).judgement is expected


@pytest.mark.parametrize(
    ("name", "made", "sentence"),
    [
        ("my-gtp", {"selector": T4}, "no lock has a configuration 'my-gtp'. Did you mean my-gpt?"),
        ("my-gpt", {}, "the pod does not say which GPU it needs"),
        ("my-gpt", {"selector": L4}, "its lock has no peak on l4: add l4 to the cards of its --gpu"),
        ("my-gpt", {"limits": {"cpu": 1}}, "no container asks for a GPU"),
        ("my-gpt", {"limits": {"nvidia.com/gpu.shared": 1}}, "is shared with other pods"),
        (
            "my-gpt",
            {"selector": {"nvidia.com/gpu.product": "RTX-9"}},
            "RTX-9 is no card that autofit knows",
        ),
    ],
)
def test_what_cannot_be_said_is_unknown_with_the_next_step(
    tmp_path: Path, name: str, made: dict[str, Any], sentence: str
) -> None:
    locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", peak("t4", 1, 2)))
    answer = judged(locks, template(name, **made))
    assert answer.judgement is Judgement.UNKNOWN
    assert sentence in answer.reason


@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [("Pod", None, "CREATE"), ("Pod", "my-gpt", "DELETE"), ("ConfigMap", "my-gpt", "CREATE")],
)
def test_other_objects_and_operations_are_not_judged(
    tmp_path: Path, kind: str, name: str | None, operation: str
) -> None:
    locks = kept(lock_in(tmp_path / "a.toml", "my-gpt", peak("t4", 15, 16)))
    answer = judged(locks, template(name, selector=T4), kind, operation)
    assert answer == Judged(Judgement.NOT_ASKED)
