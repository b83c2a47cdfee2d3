"""Answers moves of the page's controls, part by part; keeps traced configurations, and tabs apart.

    move ─▶ settings ─▶ configuration ─ traces, if it lacks some ─▶ estimate and check ─▶ cards ─▶ curve
                            └── of one thread at a time; others have their own

A move of a tab supersedes its earlier ones: what these have not begun is left out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from autofit.answers.configuration.check import check_sections
from autofit.answers.configuration.estimate import answer_in_words
from autofit.answers.section import Paragraph
from autofit.errors import AutofitError
from autofit.events import Event, EventSink, Progress
from autofit.predict.predictor import Predictor, local_predictor
from autofit.report.html.figures import axis_unit, peak_against_batch
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer
from autofit.ui.live import LiveConfiguration
from autofit.ui.move import Move
from autofit.ui.threads import Threads
from autofit_workers.spec.protocol import WorkloadRef

Part = dict[str, Any]
"""Part of an answer, as JSON has it: its only key says what it is."""

PredictorOf = Callable[[TuneSettings, WorkloadRef, EventSink], Predictor]
"""Makes the predictor of a workload, which tells a function of its progress."""

_T = TypeVar("_T")
_MOST_CONFIGURATIONS = 12  # each keeps its traces in memory
_MOST_TABS = 256
_LOOK_SECONDS = 0.1


class SupersededError(Exception):
    """A later move of the same tab has come, so that the answer is of no use any more."""


class _Entry:
    """Configuration that moves ask for, and how far the tracing of it is."""

    def __init__(self, settings: TuneSettings, workload: WorkloadRef, predictor_of: PredictorOf) -> None:
        self._settings, self._workload, self._predictor_of = settings, workload, predictor_of
        self.lock = asyncio.Lock()
        self.stage = ""
        self.live: LiveConfiguration | None = None

    def opened(self) -> LiveConfiguration:
        """The configuration, opened at the first call, and anew where one of the user's files has changed."""
        if self.live is None or not self.live.is_current():
            predictor = self._predictor_of(self._settings, self._workload, self._emit)
            self.live = LiveConfiguration(self._settings, self._workload, predictor)
        return self.live

    def _emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.stage = event.in_words


class Answers:
    """Answers moves of the page's controls.

    Args:
        tracing: threads in which steps are traced.
        computing: threads for what takes less than a second.
        internal: makes an error for the user out of an unexpected exception.
        predictor_of: makes the predictor of a workload.
    """

    def __init__(
        self,
        tracing: Threads,
        computing: Threads,
        internal: Callable[[BaseException], AutofitError],
        predictor_of: PredictorOf | None = None,
    ) -> None:
        self._predictor_of = predictor_of or _local
        self._tracing = tracing
        self._computing = computing
        self._internal = internal
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._latest: OrderedDict[str, int] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def parts(self, move: Move) -> AsyncIterator[Part]:
        """Yields the parts of an answer as they come.

        `progress` while there is no answer yet; `answer` with the documents of the estimate and, on a named
        card, of the check; `cards`, the document of all cards; `curve`, a figure. In place of the rest
        `error`, a document, or `superseded`.
        """
        self._note(move)
        try:
            async for part in self._parts(move):
                yield part
        except SupersededError:
            yield {"superseded": move.number}
        except AutofitError as error:
            yield {"error": json.loads(error.to_json())}
        except Exception as error:  # noqa: BLE001 - the boundary of a request
            yield {"error": json.loads(self._internal(error).to_json())}

    async def _parts(self, move: Move) -> AsyncIterator[Part]:
        settings, workload = await self._computing.run(partial(_resolved, move))
        entry = self._entry(settings, workload)
        is_ready = entry.live is not None and entry.live.is_ready(move.batch_size)
        threads = self._computing if is_ready else self._tracing  # slow traces of others do not stop it
        task = self._begin(entry, move, threads, partial(_prepared, entry, settings, move.batch_size))
        started = time.monotonic()
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            if not task.done():
                if not self._is_latest(move):
                    raise SupersededError
                seconds = round(time.monotonic() - started, 1)
                yield {"progress": {"stage": entry.stage or "waiting", "seconds": seconds}}
        live = task.result()
        yield {
            "answer": await self._begin(entry, move, self._computing, partial(_answer, live, settings, move))
        }
        require_latest = partial(self._require_latest, move)
        on_cards = partial(live.cards, move.batch_size, require_latest)
        cards = await self._begin(entry, move, self._computing, on_cards)
        document = json.loads(cards.to_json())
        yield {"cards": document}
        largest = {card.gpu: card.largest_batch for card in cards.cards}.get(settings.card.name)
        drawn = partial(_curve, live, settings, move.batch_size, largest, require_latest)
        yield {"curve": await self._begin(entry, move, self._computing, drawn)}

    def _entry(self, settings: TuneSettings, workload: WorkloadRef) -> _Entry:
        """Entry of a configuration, whatever its card; the least recently used ones are dropped."""
        key = workload, settings.configuration("an estimate"), settings.setup
        entry = self._entries.setdefault(key, _Entry(settings, workload, self._predictor_of))
        self._entries.move_to_end(key)
        while len(self._entries) > _MOST_CONFIGURATIONS:
            self._entries.popitem(last=False)
        return entry

    def _begin(self, entry: _Entry, move: Move, threads: Threads, call: Callable[[], _T]) -> asyncio.Task[_T]:
        """Task that calls a function in a thread once no other uses the entry, unless superseded by then.

        It goes on when the request that waits for it ends: two threads must not use a configuration at once.
        """

        async def alone() -> _T:
            async with entry.lock:
                self._require_latest(move)
                return await threads.run(call)

        task = asyncio.get_running_loop().create_task(alone())
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # is raised where the task is awaited, and of no use elsewhere

    def _note(self, move: Move) -> None:
        self._latest[move.tab] = max(move.number, self._latest.get(move.tab, 0))
        self._latest.move_to_end(move.tab)
        while len(self._latest) > _MOST_TABS:
            self._latest.popitem(last=False)

    def _is_latest(self, move: Move) -> bool:
        return self._latest.get(move.tab, 0) <= move.number

    def _require_latest(self, move: Move) -> None:
        if not self._is_latest(move):
            raise SupersededError


def _local(settings: TuneSettings, workload: WorkloadRef, emit: EventSink) -> Predictor:
    return local_predictor(workload, setup=settings.setup, emit=emit)


def _resolved(move: Move) -> tuple[TuneSettings, WorkloadRef]:
    settings = move.settings
    return settings, refer(settings.model, settings)


def _prepared(entry: _Entry, settings: TuneSettings, batch_size: int) -> LiveConfiguration:
    entry.stage = ""
    live = entry.opened()
    live.prepare(settings.card, batch_size)
    return live


def _answer(live: LiveConfiguration, settings: TuneSettings, move: Move) -> Part:
    estimate = live.estimate(settings.card, move.batch_size)
    check, words = None, list(answer_in_words(estimate, None))
    if settings.gpu is not None:
        result = live.check(settings, move.batch_size)
        check = result.to_dict()
        sections = check_sections(result, dict(move.options), {})
        words = [
            block.text for section in sections for block in section.blocks if isinstance(block, Paragraph)
        ]
    sample = live.sample()
    return {
        "estimate": estimate.to_dict(),
        "check": check,
        "words": words,
        "sample": None if sample is None else {
            "size": sample.size, "multiple": sample.multiple, "longest": sample.longest
        },
        "commands": move.commands,
        "settings": move.settings_file,
    }  # fmt: skip


def _curve(
    live: LiveConfiguration,
    settings: TuneSettings,
    batch_size: int,
    largest_batch: int | None,
    on_size: Callable[[], None],
) -> Part | None:
    """Figure of the peak curve on a card; None if each batch size costs a trace."""
    lines = live.lines(settings.card, batch_size, largest_batch, on_size)
    if not lines:
        return None
    budget = None if settings.gpu is None else settings.budget_on(settings.gpu).usable_bytes
    figure = peak_against_batch(lines, (), budget)
    _, unit_bytes = axis_unit(max([*(peak for line in lines for peak in line.peaks_bytes), budget or 0]))
    return {"figure": figure, "unit_bytes": unit_bytes}
