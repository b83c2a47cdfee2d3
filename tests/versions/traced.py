"""Traces cases with the PyTorch that this process imports; prints a line of JSON for each.

python -m tests.versions.traced [--follow RELEASE] FOLDER [NAME…]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.trace import Trace
from autofit_workers.trials import door
from tests.versions.cases import BATCH_SIZE, Case, all_cases


def sizes_of(trace: Trace) -> list[int]:
    """Bytes of each allocation of a trace in order, negative for a free."""
    sizes = [allocation.num_bytes for allocation in trace.allocations]
    return [sizes[event] if event >= 0 else -sizes[~event] for event in trace.events]


def traced(case: Case, release: str | None) -> dict[str, object]:
    """Digest of the events and predicted peaks of a case, or the error.

    Args:
        release: release of PyTorch that is followed; None for the one that traces.
    """
    began = time.monotonic()
    outcome = door.run(case.spec(release))
    if outcome.trace_json is None:
        error = outcome.error
        return {"name": case.name, "error": "" if error is None else f"{error.message}"}
    trace = Trace.from_json(outcome.trace_json)
    peak = PeakCurve.through([trace]).on_card(BATCH_SIZE, Conditions()).estimate()
    sizes = sizes_of(trace)
    return {
        "name": case.name,
        "events": len(sizes),
        "digest": hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:16],
        "sorted": hashlib.sha256(json.dumps(sorted(sizes)).encode()).hexdigest()[:16],
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "seconds": round(time.monotonic() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--follow", metavar="RELEASE")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for case in all_cases(options.folder):
        if not options.names or any(name in case.name for name in options.names):
            print(json.dumps(traced(case, options.follow)), flush=True)


if __name__ == "__main__":
    main()
