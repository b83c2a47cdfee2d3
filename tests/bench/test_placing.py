"""The simulated cluster: what it says of good and bad predictions, and which rows become jobs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from autofit.hardware.budget import budget_of
from autofit.hardware.gpus import catalogue
from tests.bench import placing
from tests.bench.request_jobs import Job, chosen, read_jobs, write_jobs

GIB = 1024**3
CLUSTER = placing.cluster()


def job(gib: float, *, predicted: float = 1.0, name: str = "a") -> Job:
    return Job(name=name, table="made up", real_bytes=int(gib * GIB), safe_bytes=int(gib * predicted * GIB))


JOBS = [job(gib, predicted=1.05, name=f"{gib}") for gib in (1, 3, 5.5, 9, 11.5, 13, 18, 21.7, 33, 55)]


def each(jobs: list[Job]) -> placing.Placed:
    return placing.a_card_each(jobs, CLUSTER, placing.asked_card)


def test_jobs_get_the_smallest_card_of_their_request() -> None:
    assert [placing.asked_card(one, CLUSTER) for one in (job(3), job(9), job(60))] == [
        catalogue()[key] for key in ("rtx-4060", "rtx-3060", "a100-80g")
    ]
    assert placing.asked_card(job(90), CLUSTER) is None
    assert each([job(90)]).num_refused == 1


def test_too_low_a_prediction_runs_out_of_memory_and_too_high_a_one_idles() -> None:
    assert each(JOBS).num_out_of_memory == 0
    assert each([job(9, predicted=0.5)]).num_out_of_memory == 1
    best = placing.a_card_each(JOBS, CLUSTER, placing.best_card)
    doubled = [dataclasses.replace(one, safe_bytes=2 * one.real_bytes) for one in JOBS[:-2]]
    assert best.idle <= each(JOBS).idle < each(doubled).idle
    assert best.num_out_of_memory == 0
    low = [job(9, predicted=0.5)]
    assert placing.shared_cards(low, CLUSTER, placing.asked_share).num_out_of_memory == 1


def test_shared_cards_hold_several_jobs() -> None:
    jobs = [job(2, name=str(number)) for number in range(12)]
    shared = placing.shared_cards(jobs, CLUSTER, placing.asked_share)
    assert shared.given_bytes < 0.6 * each(jobs).given_bytes
    need = sum(placing.best_need(one, CLUSTER) for one in jobs)
    assert shared.given_bytes - shared.idle_bytes == need


def test_a_queue_waits_for_cards_and_counts_the_free_ones() -> None:
    jobs = [job(60, name=str(number)) for number in range(2 * placing.OF_EACH + 1)]
    queued = placing.in_a_queue(jobs, CLUSTER, placing.asked_cards)
    assert queued.given_bytes == 3 * placing.OF_EACH * sum(gpu.total_bytes for gpu in CLUSTER)
    assert (queued.num_jobs, queued.num_out_of_memory) == (len(jobs), 0)


def test_what_is_real_lies_within_what_is_asked_for_of_the_context() -> None:
    for gpu in CLUSTER:
        assert placing.real_need(job(1), gpu) <= GIB + budget_of(gpu).context_bytes


def test_rows_are_chosen_by_their_names_alone() -> None:
    rows = [(f"model{model}", batch, measured) for model in range(9) for batch, measured in ((8, 1), (16, 2))]

    def names(rows: list[tuple[str, int, int]]) -> list[str]:
        found = chosen(
            rows,
            number=6,
            rows_of_a_model=1,
            model=lambda row: row[0],
            name=lambda row: f"{row[0]} {row[1]}",
        )
        return [f"{model} {batch}" for model, batch, _ in found]

    others = [(model, batch, 99 - measured) for model, batch, measured in reversed(rows)]
    assert names(rows) == names(others)
    assert len({name.split()[0] for name in names(rows)}) == 6


def test_the_table_has_a_row_for_each_way(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    write_jobs(JOBS, path)
    lines = placing.table(read_jobs(path), CLUSTER)
    ways = [line.split("|")[1].strip() for line in lines[2:]]
    assert ways == ["a card to each job", "a queue", "shared cards"]
    assert all(line.split("|")[2].strip() == str(len(JOBS)) for line in lines[2:])
