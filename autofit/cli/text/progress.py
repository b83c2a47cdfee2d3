"""Progress on stderr while a search runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from autofit.answers.words.numbers import exact
from autofit.cli.text.output import stderr
from autofit.events import Event, EventSink, Noted, Progress, TrialFinished, TrialStarted, TuneStarted, ignore
from autofit.settings.words import in_short
from autofit.units import format_bytes
from autofit_workers.spec.protocol import Probe, TrialOutcome
from autofit_workers.spec.pythons import Self

_LEAST_SECONDS = 10.0  # between two lines of what takes long, where there is no live line


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[EventSink]:
    """Context manager with an event sink: a function that shows a command's events on stderr as progress.

    Args:
        quiet: whether the function does nothing.
    """
    if quiet:
        yield ignore
        return
    with ProgressLine(stderr()) as line:
        yield line


class ProgressLine:
    """Event sink (a function that is called with each event) that shows a search's progress on a console.

    Each trial that is run, which takes seconds to minutes, leaves a line. Predictions only change a live
    line, which is cleared at the end of the `with` block.

    Args:
        console: where progress is shown; only a terminal has a live line.
        now: returns the time in seconds.
    """

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._told_seconds = now()
        self._status = Status("", console=console) if console.is_terminal else None
        self._stage = ""

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case TuneStarted():
                self._line(
                    f"{event.workload}: {format_bytes(event.budget_bytes)} ({exact(event.budget_bytes)}) "
                    f"usable; study {event.study}"
                )
            case Progress():
                self._show(event.stage, event.in_words, takes_long=bool(event.detail))
            case Noted():
                self._line(event.text)
            case TrialStarted(spec=spec) if spec.probe is Probe.PREDICT:
                where = f"{in_short(spec.knobs)}, batch {spec.batch_size}"
                self._show("searching the curves", f"trial {event.trial}: {where}")
            case TrialStarted(spec=spec):
                self._live(f"trial {event.trial}: {in_short(spec.knobs)}, batch {spec.batch_size} is running")
            case TrialFinished(spec=spec, outcome=outcome) if spec.probe is not Probe.PREDICT:
                self._line(f"trial {event.trial}: {in_short(spec.knobs)}, {_told(outcome)}")

    def _show(self, stage: str, detail: str, *, takes_long: bool = False) -> None:
        """Shows progress: on a terminal the detail, replaced in place; elsewhere each stage as it begins.

        Elsewhere a detail that takes long is a line too, once every ten seconds.

        Args:
            stage: what is being done, such as `predicting curves`.
            detail: the stage with its progress, such as `predicting curves 2/5`.
            takes_long: whether the detail names what takes long in the stage.
        """
        if self._status is None and stage != self._stage:
            self._line(stage)
        elif self._status is None and takes_long and self._now() - self._told_seconds >= _LEAST_SECONDS:
            self._line(detail)
        self._stage = stage
        self._live(detail)

    def _live(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(text))

    def _line(self, text: str) -> None:
        self._told_seconds = self._now()
        self._console.print(Text(text, style="dim"), soft_wrap=True)


def _told(outcome: TrialOutcome) -> str:
    peak_bytes = outcome.budgeted_bytes
    if not outcome.was_run and peak_bytes is not None:
        return f"batch {outcome.batch_size} is skipped: predicted to need {format_bytes(peak_bytes)}"
    peak = "" if peak_bytes is None else f", peak {format_bytes(peak_bytes)}"
    return f"batch {outcome.batch_size}: {outcome.verdict}{peak}, {outcome.wall_seconds:.1f} s"
