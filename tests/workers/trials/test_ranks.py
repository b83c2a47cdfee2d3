"""The outcome that several ranks have together, and what each of them is told; without processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Peaks,
    Probe,
    RankPeaks,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.trials.ranks import Place, joined, variables_of
from autofit_workers.trials.supervision import Supervision

SPEC = TrialSpec(
    workload=WorkloadRef(kind="builtin", target="any"),
    batch_size=8,
    probe=Probe.CUDA,
    setup=Setup(parallel=Parallel.parse("ddp:3")),
)


def outcome(verdict: Verdict, reserved_bytes: int | None = None, **settings) -> TrialOutcome:
    is_answer = verdict.is_about_memory
    return TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="a card"),
        batch_size=8,
        knobs=SPEC.knobs,
        steady=Peaks(reserved_bytes=reserved_bytes),
        error=None if is_answer else TrialError(kind="environment", message=f"{verdict} it is"),
        **settings,
    )


def test_where_all_fit_the_peak_is_that_of_the_worst_rank_and_the_step_that_of_the_slowest():
    told = joined(
        SPEC,
        [
            outcome(Verdict.FITS, 5, step_seconds=3.0),
            outcome(Verdict.FITS, 9, step_seconds=1.0),
            outcome(Verdict.FITS, 7),
        ],
    )
    assert (told.verdict, told.rank, told.parallel) == (Verdict.FITS, 1, "ddp:3")
    assert told.budgeted_bytes == 9
    assert [each.peaks.reserved_bytes for each in told.ranks] == [5, 9, 7]
    assert told.step_seconds == 3.0
    assert told.samples_per_second == 3 * 8 / 3.0
    assert TrialOutcome.from_json(told.to_json()) == told


@pytest.mark.parametrize(
    ("verdicts", "rank"),
    [
        ((Verdict.FITS, Verdict.THRASH, Verdict.FITS), 1),
        ((Verdict.FITS, Verdict.FITS, Verdict.OOM), 2),
        ((Verdict.LOST, Verdict.OOM, Verdict.FAILED), 1),
        ((Verdict.FAILED, Verdict.FAILED, Verdict.LOST), 2),  # whose death the others fail by
        ((Verdict.TIMEOUT, Verdict.FAILED, None), 1),
        ((None, Verdict.INVALID, Verdict.FITS), 1),
        ((Verdict.FAILED, Verdict.FAILED, None), 0),
    ],
)
def test_one_rank_decides_the_verdict(verdicts: tuple[Verdict | None, ...], rank: int):
    told = joined(SPEC, [None if verdict is None else outcome(verdict) for verdict in verdicts])
    assert (told.verdict, told.rank) == (verdicts[rank], rank)
    assert len(told.ranks) == 3
    assert told.error is None or told.error.message == f"rank {rank} of 3: {verdicts[rank]} it is"


def test_what_a_rank_says_comes_with_its_number():
    ran_out = outcome(Verdict.OOM, 4, environment={"out_of_memory": "in step 1"})
    told = joined(SPEC, [None, ran_out, None])
    assert told.environment["out_of_memory"] == "rank 1 of 3: in step 1"
    assert told.ranks[0] == RankPeaks(rank=0)


def test_of_ranks_that_wait_for_each_other_none_is_blamed():
    told = joined(SPEC, [outcome(Verdict.TIMEOUT)] * 3)
    assert told.error is not None
    assert told.error.message == "3 of 3 ranks, of which some may wait for others: TIMEOUT it is"


@pytest.mark.parametrize(
    ("visible", "cards"),
    [(None, ("0", "1")), ("3, GPU-5e1", ("3", "GPU-5e1")), ("2", ("2", "")), ("", ("", ""))],
)
def test_each_rank_sees_a_card_of_its_own(visible: str | None, cards: tuple[str, str]):
    place = Place(master_port=4567)
    told: list[Mapping[str, str]] = [variables_of(rank, 2, place, visible) for rank in range(2)]
    assert tuple(each["CUDA_VISIBLE_DEVICES"] for each in told) == cards
    assert [each["RANK"] for each in told] == [each["LOCAL_RANK"] for each in told] == ["0", "1"]
    assert {(each["WORLD_SIZE"], each["MASTER_ADDR"], each["MASTER_PORT"]) for each in told} == {
        ("2", "127.0.0.1", "4567")
    }


def test_ranks_of_a_second_node_are_numbered_on_and_meet_at_the_first():
    place = Place(master_port=4567, master_address="10.0.0.1", address="10.0.0.2", node=1, num_nodes=2)
    told = [variables_of(rank, 4, place, "6,7") for rank in range(2)]
    assert [(each["RANK"], each["LOCAL_RANK"], each["CUDA_VISIBLE_DEVICES"]) for each in told] == [
        ("2", "0", "6"),
        ("3", "1", "7"),
    ]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["GROUP_RANK"]) for each in told} == {
        ("4", "2", "1")
    }
    assert {each["MASTER_ADDR"] for each in told} == {"10.0.0.1"}


def test_ranks_that_cannot_be_spread_evenly_are_no_trial():
    with pytest.raises(ValueError, match="3 ranks cannot be spread evenly over 2 nodes"):
        dataclasses.replace(SPEC, num_nodes=2)
    spread = dataclasses.replace(SPEC, num_nodes=3)
    assert (spread.num_processes, spread.processes_per_node) == (3, 1)
    assert TrialSpec.from_json(spread.to_json()) == spread


@pytest.mark.parametrize("num_processes", [1, 3])
def test_ranks_share_what_the_machine_has_left(num_processes: int):
    alone = dataclasses.replace(SPEC, setup=Setup()) if num_processes == 1 else SPEC
    assert alone.num_processes == num_processes
    nobody = 2**22 + 1  # a number that no process has
    supervision = Supervision(alone, nobody, available_bytes=lambda: 3000, num_kernel_kills=lambda: 0)
    assert supervision._host_limit_bytes == 2700 // num_processes


def test_a_prediction_of_ranks_is_one_process():
    assert SPEC.num_processes == 3
    assert dataclasses.replace(SPEC, probe=Probe.PREDICT).num_processes == 1
