"""Progress of a search in a notebook, by a bar of tqdm."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from autofit.events import Event, EventSink, Noted, Progress, TrialFinished, TrialStarted, ignore
from autofit_workers.spec.protocol import Probe


@contextlib.contextmanager
def notebook_progress() -> Iterator[EventSink]:
    """Context manager with an event sink, which shows progress where IPython runs and tqdm is installed."""
    if not _runs_in_ipython() or importlib.util.find_spec("tqdm") is None:
        yield ignore
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ipywidgets are missing: the bar is text then
        from tqdm.auto import tqdm

        bar = tqdm(
            total=None, desc="autofit", leave=False, bar_format="{desc} {bar} {n_fmt}/{total_fmt} {postfix}"
        )
    try:
        yield Bar(bar)
    finally:
        bar.close()


def _runs_in_ipython() -> bool:
    """Whether a shell of IPython runs this code, such as that of a notebook."""
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None


class Bar:
    """Event sink (a function that is called with each event) that moves a bar of tqdm.

    Args:
        bar: the bar, with tqdm's interface.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, event: Event) -> None:
        match event:
            case Progress():
                self._bar.total, self._bar.n = event.total, event.done
                self._bar.set_description_str(event.stage)
                self._bar.set_postfix_str(event.detail)
            case TrialStarted(spec=spec) if spec.probe is Probe.PREDICT:
                self._bar.set_postfix_str(f"batch {spec.batch_size}")
            case TrialStarted(spec=spec):
                self._bar.set_postfix_str(f"batch {spec.batch_size} is running")
            case TrialFinished(outcome=outcome):
                self._bar.set_postfix_str(f"batch {outcome.batch_size}: {outcome.verdict}")
            case Noted():
                self._bar.write(event.text, file=sys.stderr)
