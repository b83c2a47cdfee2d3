"""How well requests place jobs: `python tests/bench/placing.py [--keep jobs.json | --jobs jobs.json]`.

200 jobs, each a measured run of the tables (`request_jobs.py` says which), are placed on six kinds of cards,
by what `autofit request` asks for from the prediction of that run, and by the real peaks, which nobody knows
beforehand. Three ways of placing:

a card to each job   the smallest kind that is asked for (Slurm, Ray, SkyPilot); there are enough of each
a queue              four cards of each kind, of which a job gets the smallest free one that is asked for;
                     all jobs take as long, others wait for the next round, and free cards count as idle
shared cards         jobs share cards by their memory (KAI, Run:ai), filled one after the other with the
                     largest job that still fits; there are enough of each

What a process holds outside the allocator is in the tables only with what else was on the card. In its place
stands what autofit takes for likely; a request asks for the most that it takes for possible.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit.hardware.budget import budget_of  # noqa: E402
from autofit.hardware.gpus import Gpu, catalogue  # noqa: E402
from autofit.requests.answer import smallest_request  # noqa: E402
from autofit.requests.formats import FORMATS  # noqa: E402
from tests.autofit.requests.answers import answer, fit  # noqa: E402
from tests.bench.request_jobs import Job, predicted_jobs, read_jobs, write_jobs  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402

OF_EACH = 4
CARDS = ("rtx-4060", "rtx-3060", "t4", "rtx-3090", "a100-40g", "a100-80g")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Result of placing jobs.

    Attributes:
        num_jobs: jobs that were placed.
        num_out_of_memory: of these, those that need more than the card, or than their part of one.
        num_refused: jobs for which no card was found.
        given_bytes: memory of the cards that were given.
        idle_bytes: part of it that no job uses.
    """

    num_jobs: int
    num_out_of_memory: int
    num_refused: int
    given_bytes: int
    idle_bytes: int

    @property
    def idle(self) -> float:
        """Idle memory as a share of that which was given."""
        return self.idle_bytes / self.given_bytes if self.given_bytes else 0.0


def cluster() -> tuple[Gpu, ...]:
    return tuple(catalogue()[key] for key in CARDS)


def real_need(job: Job, gpu: Gpu) -> int:
    """Memory of a card that a job really takes, with what it holds outside the allocator."""
    context = budget_of(gpu).context
    assert context is not None, "a GPU has one"
    return job.real_bytes + context.likely_bytes


def asked_card(job: Job, cards: Sequence[Gpu]) -> Gpu | None:
    """Card that the request for Slurm names; None if there is none."""
    found = smallest_request(
        answer(fit(gpu, job.safe_bytes) for gpu in cards), FORMATS["slurm"], names_cards=True
    )
    return catalogue()[found.cards[0].gpu] if found.cards else None


def best_card(job: Job, cards: Sequence[Gpu]) -> Gpu | None:
    """Smallest card that really holds a job."""
    holding = [gpu for gpu in cards if real_need(job, gpu) <= gpu.total_bytes]
    return min(holding, key=lambda gpu: gpu.total_bytes, default=None)


def a_card_each(
    jobs: Iterable[Job], cards: Sequence[Gpu], choose: Callable[[Job, Sequence[Gpu]], Gpu | None]
) -> Placed:
    """Places each job on a card of its own."""
    num_jobs = num_out = num_refused = given = idle = 0
    for job in jobs:
        gpu = choose(job, cards)
        if gpu is None:
            num_refused += 1
            continue
        num_jobs += 1
        need = real_need(job, gpu)
        num_out += need > gpu.total_bytes
        given += gpu.total_bytes
        idle += max(0, gpu.total_bytes - need)
    return Placed(
        num_jobs=num_jobs,
        num_out_of_memory=num_out,
        num_refused=num_refused,
        given_bytes=given,
        idle_bytes=idle,
    )


def asked_cards(job: Job, cards: Sequence[Gpu]) -> list[Gpu]:
    """Cards that the request for SkyPilot or Slurm takes, the smallest first."""
    found = smallest_request(
        answer(fit(gpu, job.safe_bytes) for gpu in cards), FORMATS["slurm"], names_cards=True
    )
    return [catalogue()[card.gpu] for card in found.cards]


def holding_cards(job: Job, cards: Sequence[Gpu]) -> list[Gpu]:
    """Cards that really hold a job, the smallest first."""
    holding = [gpu for gpu in cards if real_need(job, gpu) <= gpu.total_bytes]
    return sorted(holding, key=lambda gpu: gpu.total_bytes)


def in_a_queue(
    jobs: Iterable[Job], cards: Sequence[Gpu], takes: Callable[[Job, Sequence[Gpu]], list[Gpu]]
) -> Placed:
    """Places jobs round by round on a cluster with `OF_EACH` cards of each kind."""
    asked = [(job, takes(job, cards)) for job in jobs]
    waiting = [(job, kinds) for job, kinds in asked if kinds]
    num_jobs, num_out, used, num_rounds = len(waiting), 0, 0, 0
    while waiting:
        num_rounds += 1
        free = Counter({gpu.key: OF_EACH for gpu in cards})
        left = []
        for job, kinds in waiting:
            gpu = next((each for each in kinds if free[each.key]), None)
            if gpu is None:
                left.append((job, kinds))
                continue
            free[gpu.key] -= 1
            need = real_need(job, gpu)
            num_out += need > gpu.total_bytes
            used += min(need, gpu.total_bytes)
        waiting = left
    given = num_rounds * OF_EACH * sum(gpu.total_bytes for gpu in cards)
    return Placed(
        num_jobs=num_jobs,
        num_out_of_memory=num_out,
        num_refused=len(asked) - num_jobs,
        given_bytes=given,
        idle_bytes=given - used,
    )


def asked_share(job: Job, cards: Sequence[Gpu]) -> int | None:
    """Memory that the request for KAI asks for; None if there is none."""
    found = smallest_request(
        answer(fit(gpu, job.safe_bytes) for gpu in cards), FORMATS["kai"], names_cards=True
    )
    return found.memory_bytes


def best_share(job: Job, cards: Sequence[Gpu]) -> int | None:
    """Memory that a job really takes; None if no card has it."""
    if best_card(job, cards) is None:
        return None
    return max(real_need(job, gpu) for gpu in cards)


def shared_cards(
    jobs: Iterable[Job], cards: Sequence[Gpu], share: Callable[[Job, Sequence[Gpu]], int | None]
) -> Placed:
    """Places jobs on cards that they share: on each the largest first, until no other fits.

    The next card holds the largest job that is left, and is the kind of which the jobs fill most.
    """
    asked = [(share(job, cards), job) for job in jobs]
    waiting = sorted(
        ((size, job) for size, job in asked if size is not None), key=lambda each: (-each[0], each[1].name)
    )
    num_jobs, num_refused = len(waiting), len(asked) - len(waiting)
    num_out = sum(best_need(job, cards) > size for size, job in waiting)
    given = idle = 0
    while waiting:
        holding = [gpu for gpu in cards if gpu.total_bytes >= waiting[0][0]]
        filled = [(gpu, _filled(waiting, gpu)) for gpu in holding]
        gpu, taken = min(
            filled, key=lambda each: 1 - sum(waiting[i][0] for i in each[1]) / each[0].total_bytes
        )
        used = sum(min(waiting[i][0], best_need(waiting[i][1], cards)) for i in taken)
        given += gpu.total_bytes
        idle += gpu.total_bytes - used
        waiting = [each for i, each in enumerate(waiting) if i not in set(taken)]
    return Placed(
        num_jobs=num_jobs,
        num_out_of_memory=num_out,
        num_refused=num_refused,
        given_bytes=given,
        idle_bytes=idle,
    )


def best_need(job: Job, cards: Sequence[Gpu]) -> int:
    """Most memory that a job takes on one of the cards."""
    return max(real_need(job, gpu) for gpu in cards)


def _filled(waiting: Sequence[tuple[int, Job]], gpu: Gpu) -> list[int]:
    """Places in `waiting`, the largest first, of the jobs that fill a card."""
    left, taken = gpu.total_bytes, []
    for index, (size, _) in enumerate(waiting):
        if size <= left:
            taken.append(index)
            left -= size
    return taken


def table(jobs: Sequence[Job], cards: Sequence[Gpu]) -> list[str]:
    """Lines of a Markdown table: both ways of placing, by requests and by the real peaks."""
    ways = {
        "a card to each job": (
            a_card_each(jobs, cards, asked_card),
            a_card_each(jobs, cards, best_card),
        ),
        "a queue": (in_a_queue(jobs, cards, asked_cards), in_a_queue(jobs, cards, holding_cards)),
        "shared cards": (
            shared_cards(jobs, cards, asked_share),
            shared_cards(jobs, cards, best_share),
        ),
    }
    lines = [
        "| way | jobs | out of memory | no card | GiB given | idle | best: GiB given | idle | idle, more |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for way, (ours, best) in ways.items():
        more = (ours.idle_bytes - best.idle_bytes) / best.given_bytes
        out = f"{ours.num_out_of_memory} ({ours.num_out_of_memory / len(jobs):.1%})"
        lines.append(
            f"| {way} | {ours.num_jobs} | {out} "
            f"| {ours.num_refused} | {ours.given_bytes / 2**30:,.0f} | {ours.idle:.1%} "
            f"| {best.given_bytes / 2**30:,.0f} | {best.idle:.1%} | {more:.1%} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=Path, default=DEFAULT_TABLES, help="folder of the tables")
    parser.add_argument("--cache", type=Path, help="folder of the traces; default: in the state directory")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="processes that predict")
    parser.add_argument("--keep", type=Path, help="also writes the jobs with their predictions there")
    parser.add_argument("--jobs", type=Path, help="reads them from there, and predicts nothing")
    options = parser.parse_args()
    if options.jobs is not None:
        jobs = read_jobs(options.jobs)
    else:
        jobs = predicted_jobs(options.tables, options.cache, options.processes)
    if options.keep is not None:
        write_jobs(jobs, options.keep)
    print("\n".join(table(jobs, cluster())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
