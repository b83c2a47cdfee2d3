"""Finds how many GPUs of each card one configuration needs: `autofit cards --gpus 1,2,4,8`.

Each number of GPUs is traced by itself, and NCCL's buffers take part of each card's memory. The batch size is
that of one rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from autofit.errors import UsageError, WorkloadFailedError
from autofit.events import EventSink, Noted, ignore
from autofit.predict.predictor import Predictor
from autofit.questions.card_fits import CardFit, Unpredictable
from autofit.questions.cards import CardsAnswer, CardsQuestion, which_cards
from autofit.questions.check import Answer
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.setup import Setup


def on_how_many(
    predictor_of: Callable[[Setup], Predictor],
    settings: TuneSettings,
    question: CardsQuestion,
    *,
    emit: EventSink = ignore,
) -> CardsAnswer:
    """Predicts one configuration on several numbers of GPUs; each card and number gives a result row.

    Where the workload cannot be trained on some number of GPUs, the rows for this number hold the reason.

    Args:
        predictor_of: returns a predictor for a setup, which says how the ranks share the model.
        question: cards and batch size; its `parallels`, such as `fsdp:2` and `fsdp:8`, give the numbers of
            GPUs. No changes are tried that could make the batch fit.

    Raises:
        UsageError, WorkloadFailedError: the workload cannot be trained on any of the numbers; the message is
            that for the first of them.
    """
    answers: list[CardsAnswer] = []
    refused: list[tuple[CardFit, ...]] = []
    first_error: UsageError | WorkloadFailedError | None = None
    for number, parallel in enumerate(question.parallels, start=1):
        on_ranks = settings.with_parallel(parallel)
        emit(Noted(text=f"{parallel}, {number} of {len(question.parallels)}"))
        try:
            answers.append(which_cards(predictor_of(on_ranks.setup), on_ranks, question, emit=emit))
        except (UsageError, WorkloadFailedError) as error:
            first_error = first_error or error
            refused.append(
                tuple(
                    dataclasses.replace(
                        Unpredictable(error.message).on(gpu, on_ranks), price=question.prices.get(gpu.key)
                    )
                    for gpu in question.gpus
                )
            )
    if not answers:
        assert first_error is not None, "there is a number of GPUs"
        raise first_error
    found = [row for answer in answers for row in answer.cards] + [row for rows in refused for row in rows]
    found.sort(key=lambda row: (row.total_bytes, row.gpu, row.num_gpus))
    return dataclasses.replace(answers[0], cards=tuple(found), fewest_gpus=_fewest(found))


def _fewest(rows: list[CardFit]) -> dict[str, int | None]:
    """Smallest number of GPUs on which the batch fits, by card key; None for a card that never suffices."""
    fewest: dict[str, int | None] = {row.gpu: None for row in rows}
    for row in reversed(rows):
        if row.verdict is Answer.FITS:
            fewest[row.gpu] = row.num_gpus
    return fewest
