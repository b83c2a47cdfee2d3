"""Lays out the GPUs on which a configuration fits, and searches on several GPUs, as sections of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofit.answers.section import (
    Cell,
    Code,
    Column,
    Mark,
    Paragraph,
    Section,
    left,
    right,
    strong,
    table,
)
from autofit.answers.words.commands import fitting_command
from autofit.answers.words.numbers import (
    dearer_in_words,
    duration,
    gib,
    rate,
    seconds_in_words,
    slower_in_words,
)
from autofit.explain.timing import StepSeconds
from autofit.predict.whole_run import full_step
from autofit.questions.advice import Advice, Combination
from autofit.questions.card_fits import CardFit
from autofit.questions.cards import CardsAnswer
from autofit.questions.check import Answer
from autofit.settings.words import with_setting
from autofit.tuning.found import Best
from autofit.tuning.result import CardResults, TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.protocol import Verdict

_VERDICTS: dict[Answer, tuple[str, Mark]] = {
    Answer.FITS: ("fits", "good"),
    Answer.UNSURE: ("unsure", "unsure"),
    Answer.DOES_NOT_FIT: ("does not fit", "bad"),
}
_NUM_COMMANDS = 4  # commands printed at most; the table has the options for all cards
_LIKELY = {Verdict.FITS: "likely fits", Verdict.THRASH: "likely thrashes", Verdict.OOM: "likely does not"}


def cards_sections(answer: CardsAnswer, command: str, asked: Mapping[str, Any]) -> Iterator[Section]:
    """Yields an answer's sections: a table of GPU models (cards) that fit, and commands that make others fit.

    The table has a row for each card; for several numbers of GPUs, a row for each card and number.

    Args:
        answer: prediction of one batch size on each card.
        command: name of the autofit command that was typed, such as `cards`. The commands that make the
            batch fit on another card repeat it, with the changed options.
        asked: the typed options, from parameter name to value.
    """
    if answer.fewest_gpus is not None:
        yield from _on_numbers(answer, answer.fewest_gpus)
        return
    yield _question(f"{_what(answer)}; predicted, at risk {answer.risk}")
    yield _cards(
        (left("--gpu"), right("GiB"), right("usable"), *_fit_columns(answer), left("fits with")),
        (
            (
                strong(card.gpu),
                gib(card.total_bytes),
                gib(card.usable_bytes),
                *_fit(answer, card),
                _with(card),
            )
            for card in answer.cards
        ),
    )
    helped = [(card.gpu, combination) for card in answer.cards if (combination := _combination(card))]
    commands = tuple(fitting_command(changes, command, {**asked, "gpu": gpu}) for gpu, changes in helped)
    yield Section(
        name="answer",
        blocks=(
            Paragraph(_in_words(answer), is_whole=True),
            *((Code(commands),) if 0 < len(commands) <= _NUM_COMMANDS else ()),
        ),
    )


def _question(said: str) -> Section:
    return Section(name="configuration", blocks=(Paragraph(said),))


def _cards(columns: Iterable[Column], rows: Iterable[Iterable[str | Cell]]) -> Section:
    shown = table(columns, rows, fit="whole")
    return Section(name="cards", title="The cards", blocks=(shown,), is_leading=True)


def _fit_columns(answer: CardsAnswer) -> tuple[Column, ...]:
    """Table columns filled by `_fit`: whether a batch fits on a GPU model, its peaks, and its speed."""
    of_numbers = (right("samples a step"),) if answer.fewest_gpus is not None else ()
    speeds = map(right, _speed_columns(answer))
    return (
        left(f"batch {answer.batch_size}"),
        right("likely"),
        right("up to"),
        right("largest batch"),
        *of_numbers,
        *speeds,
    )


def _fit(answer: CardsAnswer, card: CardFit) -> Iterator[str | Cell]:
    word, mark = _VERDICTS[card.verdict]
    yield Cell(_verdict(card, word), mark)
    yield from _peaks(card)
    yield "–" if card.largest_batch is None else str(card.largest_batch)
    if answer.fewest_gpus is not None:
        yield "–" if card.samples_per_step is None else str(card.samples_per_step)
    yield from _speed_columns(answer, card).values()


def _peaks(card: CardFit) -> tuple[str, str]:
    """Texts of the likely and the highest predicted peak on a GPU model, in GiB.

    If the step likely runs out of memory there, they are of the memory that it would need. Both are dashes if
    nothing is predicted.
    """
    interval = card.need if card.likely_verdict is Verdict.OOM and card.need is not None else card.interval
    return ("–", "–") if interval is None else (gib(interval.likely_bytes), gib(interval.high_bytes))


def _speed_columns(answer: CardsAnswer, card: CardFit | None = None) -> dict[str, str]:
    """Table cells on speed and price of a GPU model, from column title to text: `{"samples/s": "310"}`.

    A column is present if at least one card of the answer has a value for it; a cell without one is a dash.

    Args:
        card: card (GPU model) whose cells are returned; None to get only the titles, with dashes as cells.
    """
    cells: dict[str, str] = {}
    if any(each.samples_per_second is not None for each in answer.cards):
        seconds = None if card is None else card.step_seconds
        per_second = None if card is None else card.samples_per_second
        cells["step"] = "–" if seconds is None else seconds_in_words(seconds.likely)
        cells["samples/s"] = "–" if per_second is None else rate(per_second)
        if answer.epoch_samples is not None:
            epoch = None if card is None else card.epoch_seconds
            cells["epoch"] = "–" if epoch is None else duration(epoch)
        if any(each.samples_per_price is not None for each in answer.cards):
            per_price = None if card is None else card.samples_per_price
            cells["samples for 1"] = "–" if per_price is None else f"{per_price:,.0f}"
    if any(each.relative_step_time is not None for each in answer.cards):
        relative = None if card is None else card.relative_step_time
        cells["a step is"] = "–" if relative is None else slower_in_words(relative)
    if any(each.relative_price is not None for each in answer.cards):
        relative = None if card is None else card.relative_price
        cells["a sample costs"] = "–" if relative is None else dearer_in_words(relative)
    return cells


def _on_numbers(answer: CardsAnswer, fewest_gpus: dict[str, int | None]) -> Iterator[Section]:
    """Yields a table with a row for each card and number of GPUs, and sentences on the fewest GPUs.

    Args:
        fewest_gpus: least number of GPUs on which the batch fits, by the card's key; None if it fits on
            none of the numbers asked for.
    """
    algorithm = with_setting(answer.knobs.conv_algo) if answer.convolves else ""
    batch = f"batch {answer.batch_size}"
    yield _question(f"{answer.workload} at {batch} on each GPU{algorithm}; predicted, at risk {answer.risk}")
    above = (None, *(card.gpu for card in answer.cards))
    yield _cards(
        (left("--gpu"), right("GPUs"), left("parallel"), right("usable"), *_fit_columns(answer)),
        (
            (
                strong("" if card.gpu == last else card.gpu),
                str(card.num_gpus),
                card.parallel,
                gib(card.usable_bytes),
                *_fit(answer, card),
            )
            for last, card in zip(above, answer.cards, strict=False)
        ),
    )
    said = [*_fewest(f"Batch {answer.batch_size}", fewest_gpus), _on_times(answer)]
    refused = {card.reason: card for card in answer.cards if card.reason}.values()
    said += [f"{card.parallel or 'One GPU'}: {card.reason}." for card in refused]
    blocks = tuple(Paragraph(sentence, is_whole=True) for sentence in said if sentence)
    yield Section(name="answer", blocks=blocks)


def _fewest(batch: str, fewest_gpus: dict[str, int | None]) -> Iterator[str]:
    """Yields sentences such as `Batch 8 fits on 2 GPUs of t4`, one for each number of GPUs.

    Args:
        batch: name of the batch in the sentences, such as `Batch 8`.
        fewest_gpus: least number of GPUs on which the batch fits, by the card's key; None if it fits on
            none of the numbers asked for.
    """
    for number in sorted({number for number in fewest_gpus.values() if number is not None}):
        cards = ", ".join(gpu for gpu, fewest in fewest_gpus.items() if fewest == number)
        yield f"{batch} fits on {'one GPU' if number == 1 else f'{number} GPUs'} of {cards}."
    if none := [gpu for gpu, fewest in fewest_gpus.items() if fewest is None]:
        yield f"{batch} fits on none of these numbers of {', '.join(none)}."


def tuned_cards_sections(results: CardResults) -> Iterator[Section]:
    """Yields a table of the recommended batch on each card (GPU model), the smallest memory first.

    Cards on which nothing could be predicted are named below the table, with the reason.

    Args:
        results: one search for the largest batch on each card.
    """
    first = results.answers[0]
    is_timed = any(_seconds(result.chosen) is not None for result in results.answers)
    yield _question(f"{first.workload}: the batch on each card; predicted, at risk {first.risk}")
    ordered = sorted(results.answers, key=lambda result: result.budget.device_total_bytes)
    yield _cards(
        (
            left("--gpu"),
            right("GiB"),
            right("usable"),
            right("batch"),
            left("with"),
            right("likely"),
            right("up to"),
            *((right("step"), right("samples/s")) if is_timed else ()),
        ),
        (_tuned(result, is_timed=is_timed) for result in ordered),
    )
    for reason in dict.fromkeys(results.unanswered.values()):
        cards = [gpu for gpu, why in results.unanswered.items() if why == reason]
        said = f"Not predicted on {', '.join(cards)}: {reason}."
        yield Section(name="unanswered", blocks=(Paragraph(said, is_whole=True),))
    more = "`autofit tune --gpu CARD` shows the whole answer of one."
    yield Section(name="more", blocks=(Paragraph(more, is_whole=True),))


def _tuned(result: TuneResult, *, is_timed: bool) -> Iterator[str | Cell]:
    """Yields the table cells of one GPU model: its memory, and the batch that the search on it recommends.

    Args:
        is_timed: whether the table has columns of the step time and of samples a second.
    """
    budget, chosen = result.budget, result.chosen
    interval = None if chosen is None else chosen.interval
    yield strong(result.device.name)
    yield gib(budget.device_total_bytes)
    yield gib(budget.usable_bytes)
    yield "–" if chosen is None else Cell(str(chosen.batch_size), "good")
    yield _nothing_fits(result.advice) if chosen is None else _setting(result, chosen)
    yield "" if interval is None else gib(interval.likely_bytes)
    yield "" if interval is None else gib(interval.high_bytes)
    if is_timed:
        yield from _speed(chosen)


def _seconds(chosen: Best | None) -> StepSeconds | None:
    return None if chosen is None else chosen.predicted_step_seconds


def _speed(chosen: Best | None) -> tuple[str, str]:
    """Texts of predicted step time and samples a second; two dashes if not predicted.

    Args:
        chosen: configuration (batch size, precision, …) that a search recommends; None if nothing fits.
    """
    seconds = _seconds(chosen)
    if chosen is None or seconds is None or chosen.predicted_samples_per_second is None:
        return "–", "–"
    return seconds_in_words(seconds.likely), rate(chosen.predicted_samples_per_second)


def _setting(result: TuneResult, chosen: Best) -> str:
    """Text that names a recommended configuration: its parallelism, knob values and sample size.

    The parallelism is left out if the search compared none, the size of a sample if it was not searched.
    """
    ranks = (
        f"{chosen.parallel or 'ddp:1'}, {chosen.samples_per_step} samples a step" if result.parallels else ""
    )
    parts = (ranks, result.setting_names[chosen.knobs], result.size_in_words(chosen.knobs))
    return " · ".join(filter(None, parts))


def _verdict(card: CardFit, word: str) -> str:
    if card.verdict is not Answer.UNSURE:
        return word
    return "not predicted" if card.likely_verdict is None else f"{word}, {_LIKELY[card.likely_verdict]}"


def _nothing_fits(advice: Advice | None) -> str:
    if advice is None or advice.combination is None:
        return "nothing fits"
    return f"nothing fits; batch {advice.batch_size} with {' '.join(advice.combination.options)}"


def _what(answer: CardsAnswer) -> str:
    algorithm = with_setting(answer.knobs.conv_algo) if answer.convolves else ""
    ranks = f", on each of {answer.num_ranks} ranks" if answer.num_ranks > 1 else ""
    return f"{answer.workload} at batch {answer.batch_size}{algorithm}{ranks}"


def _with(card: CardFit) -> str:
    if card.reason and card.likely_verdict is not None:
        return card.reason
    if (step := full_step(card.growth)) is not None:
        return f"memory grows: full at step {step:,}"
    combination = _combination(card)
    return "" if combination is None else " ".join(combination.options)


def _combination(card: CardFit) -> Combination | None:
    return None if card.advice is None else card.advice.combination


def _in_words(answer: CardsAnswer) -> str:
    """Sentences below a table of GPU models: the smallest that fits, further help, missing predictions."""
    if answer.fitting:
        smallest = answer.fitting[0]
        num, total = len(answer.fitting), len(answer.cards)
        said = (
            f"Batch {answer.batch_size} fits on {num} of {total} cards, the smallest of them {smallest.gpu} "
            f"with {format_bytes(smallest.total_bytes)}."
        )
    else:
        said = f"Batch {answer.batch_size} fits on none of these cards{_instead(answer)}."
    if any(card.verdict is not Answer.FITS and _combination(card) is None for card in answer.cards) and (
        answer.num_levers_untried
    ):
        said += f" --what-if tries {answer.num_levers_untried} more changes, at about a second each."
    reasons = dict.fromkeys(card.reason for card in answer.cards if card.likely_verdict is None)
    parts = (said, _on_times(answer), *(f"Not predicted: {reason}." for reason in reasons))
    return " ".join(filter(None, parts))


def _instead(answer: CardsAnswer) -> str:
    """Clause that follows `fits on none of these cards`: change options, or take a smaller batch."""
    if any(_combination(card) is not None for card in answer.cards):
        return " as it is: use the options of a row, or a smaller batch"
    if all(full_step(card.growth) is not None for card in answer.cards):
        return ": its memory grows with each step, also with a smaller batch"
    return ": take a smaller batch"


def _on_times(answer: CardsAnswer) -> str:
    """Sentence on why a table of GPU models has no step times; empty if it has them or needs none.

    `--samples` and `--price` need step times. Where only the order of the models by speed is predicted, the
    sentence is there in any case.
    """
    if any(card.samples_per_second is not None for card in answer.cards):
        return ""
    asked = ["--samples"] if answer.epoch_samples is not None else []
    asked += ["--price"] if any(card.price is not None for card in answer.cards) else []
    if any(card.relative_step_time is not None for card in answer.cards):
        said = "Only which card is faster is predicted, no seconds: too few such steps were ever measured."
        return f"{said} So --samples has no answer." if "--samples" in asked else said
    if not asked:
        return ""
    have = "has" if len(asked) == 1 else "have"
    return f"No step times are predicted here, so {' and '.join(asked)} {have} no answer."
