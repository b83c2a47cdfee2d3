"""Note on what a predicted workload can change if it runs without the process boundary.

The process boundary, such as namespaces of Linux, keeps the user's code from changing anything.
"""

from __future__ import annotations

from autofit_workers.process.boundary.entering import entered
from autofit_workers.process.boundary.restrictions import Restrictions
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.trace import UNPROTECTED

MORE = "; `autofit doctor` says more"
_OF_FILES = "what a workload file writes, starts and connects to"
_OF_SCRIPTS = "what native libraries do by themselves with files, processes, shared memory and connections"
_WITH_PROCESSES = f"{_OF_SCRIPTS}, and whatever other processes do"
_RESTRICTED = (
    "{who} to rights and times of files, terminals, shared memory, caches, the temporary folder and empty "
    "folders"
)
_OF_OTHERS = ", to other processes by signals"
_OF_CALLS = ", to other processes and to sockets of this machine"


def notes_of(spec: TrialSpec) -> tuple[str, ...]:
    """Note for the user on what the predicted code can change if there is no process boundary.

    Empty inside the boundary, and for built-in and library models.
    """
    state, kind = entered(), spec.workload.kind
    if state.is_inside or kind in ("builtin", "library"):
        return ()
    what = _what(state.restrictions, is_script=kind == "script", starts=spec.setup.allows_subprocesses)
    return (f"{UNPROTECTED}: {what} takes effect ({state.reason}){MORE}",)


def _what(given_up: Restrictions | None, *, is_script: bool, starts: bool) -> str:
    if given_up is None or not given_up.files:
        return (_WITH_PROCESSES if starts else _OF_SCRIPTS) if is_script else _OF_FILES
    what = _RESTRICTED.format(who="what native libraries do" if is_script else "what a workload file does")
    what += ("" if given_up.others else _OF_OTHERS) + ("" if given_up.calls else _OF_CALLS)
    return f"{what}, and by connections,"
