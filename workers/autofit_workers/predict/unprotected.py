"""What of a predicted workload takes effect where there is no boundary, in words for its answer."""

from __future__ import annotations

from autofit_workers.process.boundary.entering import entered
from autofit_workers.protocol import TrialSpec
from autofit_workers.trace import UNPROTECTED

OF_FILES = "what a workload file writes, starts and connects to"
OF_SCRIPTS = "what native libraries do by themselves with files and connections"
MORE = "; `autofit doctor` says more"
_WITH_PROCESSES = f"{OF_SCRIPTS}, and whatever other processes do"


def notes_of(spec: TrialSpec) -> tuple[str, ...]:
    """The note of an answer; none where nothing takes effect, nor of code that comes with autofit."""
    state, kind = entered(), spec.workload.kind
    if state.is_inside or kind in ("builtin", "library"):
        return ()
    of_scripts = _WITH_PROCESSES if spec.setup.allows_subprocesses else OF_SCRIPTS
    what = of_scripts if kind == "script" else OF_FILES
    return (f"{UNPROTECTED}: {what} takes effect ({state.reason}){MORE}",)
