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
from autofit.questions.cards import CardFit, CardsAnswer, CardsQuestion, Unpredictable, which_cards
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
    """Predicts one configuration on several numbers of GPUs of each card; a result row for each number.

    If the workload cannot be trained on a number of GPUs, its row has the reason.

    Args:
        predictor_of: returns the predictor of a setup.
        question: its `parallels` are the kinds of parallelism to predict; no changes are tried.

    Raises:
        UsageError, WorkloadFailedError: it cannot be trained on any number; the reason is that of the first.
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
    """Smallest number of GPUs of each card on which the batch fits, by card; None if it fits on none."""
    fewest: dict[str, int | None] = {row.gpu: None for row in rows}
    for row in reversed(rows):
        if row.verdict is Answer.FITS:
            fewest[row.gpu] = row.num_gpus
    return fewest
