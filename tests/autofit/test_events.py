"""Events reach every sink, in order."""

from __future__ import annotations

from autofit.events import Event, Progress, TuneStarted, fan_out

STARTED = TuneStarted(workload="resnet50", gpu="t4", budget_bytes=1, study="night", started_seconds=1.0)
PROGRESS = Progress(stage="measuring", done=1, total=3)


def test_every_sink_gets_every_event_in_the_order_it_was_given():
    seen: list[tuple[str, Event]] = []
    emit = fan_out(
        lambda event: seen.append(("journal", event)), lambda event: seen.append(("display", event))
    )
    emit(STARTED)
    emit(PROGRESS)
    assert seen == [
        ("journal", STARTED),
        ("display", STARTED),
        ("journal", PROGRESS),
        ("display", PROGRESS),
    ]


def test_no_sink_is_a_sink_too():
    assert fan_out()(STARTED) is None
