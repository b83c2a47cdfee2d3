"""Records a real run's memory snapshot, with its configuration beside it, so that a GPU becomes a row.

    python -m autofit_workers.trials.record --snapshot run.pickle --models gpt2

FILE is what `torch.cuda.memory._dump_snapshot` writes, of all steps from the building of the model on, with
the frames of Python and C++. FILE.json is one row of schema `autofit.ground-truth/1` and kind `snapshot`.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autofit_workers.spec.protocol import GROUND_TRUTH_SCHEMA, TrialSpec

_MOST_EVENTS = 1_000_000  # as many as `autofit observe --snapshot` reads
_PROTOCOL = 4  # the newest that pytorch.org/memory_viz reads

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Functions of PyTorch that a recording needs; tests replace them.

    Attributes:
        begin: begins to record the allocator's history.
        run: runs the steps of a trial on the card, and returns what its peaks were.
        snapshot: returns the memory snapshot.
    """

    begin: Callable[[], None]
    run: Callable[[TrialSpec], Row]
    snapshot: Callable[[], dict[str, Any]]


def on_cuda() -> Recorder:
    """Recorder of the first visible card; importing it imports torch."""
    import torch

    from autofit_workers.pytorch.cuda import memory_snapshot, record_memory_history
    from autofit_workers.trials.measure import steps
    from autofit_workers.trials.measure.card import Card
    from autofit_workers.trials.measure.cuda import AllocatorMeter
    from autofit_workers.workload.workload import resolve

    class Meter(AllocatorMeter):
        """Meter that lets the history go on where it resets the peaks."""

        def reset(self) -> None:
            torch.cuda.synchronize(0)
            torch.cuda.reset_peak_memory_stats(0)

    def begin() -> None:
        record_memory_history("all", context="all", stacks="all", max_entries=_MOST_EVENTS)

    def run(spec: TrialSpec) -> Row:
        card = Card.at_hand()
        device, meter = torch.device("cuda", 0), Meter(card)
        progress = steps.Progress(device=card.device, report=lambda *_: None)
        with steps.conditions(spec, device, progress.remarks) as rewriting:
            trial = steps.Trial(resolve(spec.workload), spec, device, meter, progress, rewriting=rewriting)
            trial.take_steps()
        torch.cuda.synchronize(0)
        return {
            name: dataclasses.asdict(peaks)
            for name, peaks in (("first_step", progress.first_step), ("steady", progress.steady))
            if peaks is not None
        }

    return Recorder(begin=begin, run=run, snapshot=memory_snapshot)


def record_snapshot(path: Path, spec: TrialSpec, described: Row, device: Row, recorder: Recorder) -> str:
    """Runs a trial's steps, and writes their snapshot and the configuration beside it.

    Args:
        path: file of the snapshot; the configuration's has `.json` after its name.
        spec: what to run.
        described: fields of a row that say what ran.
        device: fields of a row that say on which card.
        recorder: runs it.

    Returns:
        Sentences that say what was written, and what to send.

    Raises:
        OSError: a file cannot be written.
    """
    recorder.begin()
    peaks = recorder.run(spec)
    data = pickle.dumps(recorder.snapshot(), protocol=_PROTOCOL)
    row = {"schema": GROUND_TRUTH_SCHEMA, **described, **peaks, "kind": "snapshot", "device": device}
    beside = path.with_name(f"{path.name}.json")
    path.write_bytes(data)
    beside.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    return (
        f"wrote {path} ({len(data):,} bytes) and {beside}\n"
        "To make this card a row of the ground truth, send both files to the project. They hold sizes, file "
        "names, lines and\nthe card's name, and no weights or data.\n"
        f"`autofit observe --snapshot {path} --model {spec.workload.target} --batch-size {spec.batch_size}` "
        "compares them with the prediction.\n"
    )
