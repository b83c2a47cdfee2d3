"""Reads the observed peaks in this machine's state directory repeatedly, and emits their changes.

`autofit observe` stores peaks in the state directory of the machine that it runs on, never in a storage.
"""

from __future__ import annotations

from pathlib import Path

from autofit.events import EventSink, RealRunPeak, RealRunsObserved
from autofit.paths import FileStamp, stamp_of
from autofit.predict.intervals.observations import (
    UNREADABLE,
    Observation,
    PeakKind,
    read_stored,
    stored_files,
)
from autofit.serve.background import Log
from autofit.serve.watch import Reader


class ObservationReader:
    """Reads the stored observed peaks again and again; reads only files that have changed.

    Args:
        emit: called with an event when peaks were stored, replaced or taken back.
        log: called with a sentence about a file that cannot be read, once.
    """

    def __init__(self, *, emit: EventSink, log: Log) -> None:
        self._emit = emit
        self._log = log
        self._states: dict[Path, FileStamp] = {}
        self._found: dict[Path, Observation] = {}

    def read(self) -> None:
        """Emits all stored peaks if any has changed since the last call."""
        states = _states()
        if states == self._states:
            return
        for path in self._states.keys() - states.keys():
            self._found.pop(path, None)
        for path, state in states.items():
            if self._states.get(path) != state:
                self._read(path)
        self._states = states
        newest_first = sorted(self._found, key=lambda path: (states[path], path), reverse=True)
        self._emit(RealRunsObserved(peaks=tuple(_peak(self._found[path]) for path in newest_first)))

    def _read(self, path: Path) -> None:
        self._found.pop(path, None)
        try:
            self._found[path] = read_stored(path)
        except UNREADABLE as error:
            self._log(f"the observation {path} cannot be read and is not shown: {error}")


class BesideObservations:
    """Reader of a storage that reads the stored observed peaks first.

    A storage that cannot be read holds no observed peak back.
    """

    def __init__(self, reader: Reader, observations: ObservationReader) -> None:
        self._reader = reader
        self._observations = observations

    def read(self) -> None:
        """Reads both; raises what the reader of the storage raises."""
        self._observations.read()
        self._reader.read()


def _states() -> dict[Path, FileStamp]:
    states = {}
    for path in stored_files():
        try:
            states[path] = stamp_of(path)
        except OSError:  # taken back since the folder was listed, or on a share that is gone
            continue
    return states


def _peak(seen: Observation) -> RealRunPeak:
    predicted_bytes = seen.expected_bytes
    if predicted_bytes is None and seen.kind is PeakKind.RESERVED:
        predicted_bytes = seen.predicted_bytes  # an earlier version stored that of reserved peaks alone
    return RealRunPeak(
        workload=seen.workload,
        gpu=seen.card,
        kind=seen.kind,
        observed_bytes=seen.peak_bytes,
        predicted_bytes=predicted_bytes,
    )
