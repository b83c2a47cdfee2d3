"""The smallest request that fits, for one scheduler; the JSON document is `autofit.request/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import ExitCode, UsageError, did_you_mean, either
from autofit.explain.timing import StepSeconds
from autofit.questions.card_fits import CardFit
from autofit.questions.cards import CardsAnswer
from autofit.questions.check import Answer
from autofit.requests.asked import Asked, in_order
from autofit.requests.formats import FORMATS
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.settings.goals import Risk
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence

REQUEST_SCHEMA = "autofit.request/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCard:
    """Card that a request asks for, or that a scheduler may give for it.

    Attributes:
        gpu: key of the card in the catalogue.
        num_gpus: number of such GPUs on all nodes.
        parallel: kind of parallelism of the ranks, such as `fsdp:8`; empty for a single process.
        total_bytes: total memory that CUDA reports.
        usable_bytes: part of it that is left for PyTorch.
        required_bytes: reserved peak that has to be within it, at the risk that was asked for.
        least_total_bytes: smallest total memory with which a card of this architecture would do.
        step_seconds: predicted time of a step; None where it is too uncertain.
        epoch_seconds: predicted time of an epoch, if its samples are known and step times are stated.
        price: price of an hour of one such card, from the file of `--prices`.
        epoch_price: price of an epoch on all GPUs, where its time and the card's price are known.
    """

    gpu: str
    num_gpus: int
    parallel: str
    total_bytes: int
    usable_bytes: int
    required_bytes: int
    least_total_bytes: int
    step_seconds: StepSeconds | None
    epoch_seconds: float | None
    price: float | None
    epoch_price: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswer:
    """Smallest request that fits, for one scheduler; `to_json()` is the document `autofit.request/1`.

    Attributes:
        scheduler: its name, as it is typed.
        asks_by: what the scheduler is asked by: `card` (names of cards), `card-memory` (a card with at least
            so much memory) or `memory` (so much of a card's memory, which others may share).
        workload: name of the workload.
        mode: `train` or `infer`.
        batch_size: samples a batch; with several ranks, of one rank.
        knobs: knob setting of the prediction.
        risk: which value of the predicted peak has to be within the memory.
        verdict: `fits` if there is a request; else `unsure` if some card may do, or `does-not-fit`.
        request: the request, ready to paste; null if there is none.
        values: its content, as the scheduler's keys; null if there is none.
        num_gpus: number of GPUs on all nodes, of the first card.
        num_nodes: number of machines that they are on.
        memory_bytes: memory of each GPU that is asked for; null where cards are asked for by name.
        cards: cards that the request asks for, or that the scheduler may give for it: the cheapest for an
            epoch first, where prices and seconds are known, else the smallest.
        reason: why there is no request; else empty.
        notes: what to know before it is used.
        evidence: `predicted`.
        versions: versions of autofit and PyTorch.
    """

    scheduler: str
    asks_by: AsksBy
    workload: str
    mode: str
    batch_size: int
    knobs: Knobs
    risk: Risk
    verdict: Answer
    request: str | None
    values: dict[str, Any] | None
    num_gpus: int | None
    num_nodes: int
    memory_bytes: int | None
    cards: tuple[RequestedCard, ...]
    reason: str = ""
    notes: tuple[str, ...] = ()
    evidence: Evidence = Evidence.PREDICTED
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command: 0 if there is a request."""
        return self.verdict.exit_code

    def to_json(self) -> str:
        return json.dumps({"schema": REQUEST_SCHEMA, **dataclasses.asdict(self)}, indent=2)


def format_named(name: str) -> RequestFormat:
    """Format of a scheduler.

    Raises:
        UsageError: there is no such scheduler; the message suggests one.
    """
    found = FORMATS.get(name.strip().casefold())
    if found is None:
        raise UsageError(
            f"--for: no scheduler named {name!r}, name one of {', '.join(FORMATS)}."
            f"{did_you_mean(name, FORMATS)}"
        )
    return found


def smallest_request(
    answer: CardsAnswer, form: RequestFormat, *, names_cards: bool, num_nodes: int = 1
) -> RequestAnswer:
    """Smallest request with which a configuration surely runs.

    Args:
        answer: whether the configuration fits on each card to choose among.
        names_cards: whether the user named the cards, and others are not wanted.
        num_nodes: number of machines over which the GPUs are spread.
    """
    asked = Asked(
        rows=answer.cards, fitting=in_order(answer.cards), names_cards=names_cards, num_nodes=num_nodes
    ).among(form.gives)
    written = form.write(asked) if asked.fitting else None
    verdict, reason = Answer.FITS, ""
    if written is None:
        verdict, reason = _why_not(answer, asked, form)
    return RequestAnswer(
        scheduler=form.name,
        asks_by=form.asks_by,
        workload=answer.workload,
        mode=answer.mode,
        batch_size=answer.batch_size,
        knobs=answer.knobs,
        risk=answer.risk,
        verdict=verdict,
        request=None if written is None else written.text,
        values=None if written is None else written.values,
        num_gpus=None if written is None else written.cards[0].num_gpus,
        num_nodes=num_nodes,
        memory_bytes=None if written is None else written.memory_bytes,
        cards=() if written is None else _cards(written, answer.epoch_samples),
        reason=reason,
        notes=() if written is None else written.notes,
        versions=answer.versions,
    )


def _cards(written: Written, epoch_samples: int | None) -> tuple[RequestedCard, ...]:
    return tuple(_card(row, epoch_samples) for row in written.cards)


def _card(row: CardFit, epoch_samples: int | None) -> RequestedCard:
    assert row.required_bytes is not None, "what fits is predicted"
    assert row.least_total_bytes is not None, "what fits is predicted"
    is_priced = row.samples_per_price is not None and epoch_samples is not None
    return RequestedCard(
        gpu=row.gpu,
        num_gpus=row.num_gpus,
        parallel=row.parallel,
        total_bytes=row.total_bytes,
        usable_bytes=row.usable_bytes,
        required_bytes=row.required_bytes,
        least_total_bytes=row.least_total_bytes,
        step_seconds=row.step_seconds,
        epoch_seconds=row.epoch_seconds,
        price=row.price,
        epoch_price=epoch_samples / row.samples_per_price if is_priced else None,  # type: ignore[operator]
    )


def _why_not(answer: CardsAnswer, asked: Asked, form: RequestFormat) -> tuple[Answer, str]:
    """Verdict and sentence where there is no request."""
    if asked.fitting:
        keys = [row.gpu for row in asked.fitting]
        return Answer.DOES_NOT_FIT, (
            f"the batch fits on {either(keys)}, but {form.scheduler} cannot be asked for cards that all fit: "
            "name others with --gpu"
        )
    if not asked.rows:
        return Answer.DOES_NOT_FIT, (
            f"{form.scheduler} gives none of the cards of --gpu: name others (`autofit gpus` lists them)"
        )
    row = _nearest(asked.rows)
    is_unsure = any(each.verdict is Answer.UNSURE for each in asked.rows)
    verdict = Answer.UNSURE if is_unsure else Answer.DOES_NOT_FIT
    if row is None:
        reason = next((each.reason for each in asked.rows if each.reason), "")
        return verdict, f"no card is predicted to hold batch {answer.batch_size}: {reason}"
    assert row.required_bytes is not None
    number = "" if row.num_gpus == 1 else f"{row.num_gpus} × "
    is_one = answer.fewest_gpus is None and answer.num_ranks == 1
    several = ", several GPUs (--gpus 1,2,4,8)" if is_one else ""
    return verdict, (
        f"batch {answer.batch_size} surely fits on none of the cards: the step needs up to "
        f"{format_bytes(row.required_bytes)}, and {number}{row.gpu}, the nearest, has "
        f"{format_bytes(row.usable_bytes)} usable. Name larger cards with --gpu, a smaller batch{several}, "
        "or see `autofit cards` for settings that help"
    )


def _nearest(rows: Iterable[CardFit]) -> CardFit | None:
    """Result that lacks the least memory; None if nothing is predicted."""
    predicted = [row for row in rows if row.required_bytes is not None and not row.reason]
    return min(
        predicted,
        key=lambda row: ((row.required_bytes or 0) - row.usable_bytes, row.num_gpus, row.gpu),
        default=None,
    )
