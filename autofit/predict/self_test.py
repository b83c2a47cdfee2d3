"""Self-test of whether prediction works with the installed PyTorch, run once per build."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import autofit_workers
from autofit import paths
from autofit.dispatch.base import Runner
from autofit.errors import UnusablePyTorchError
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.trace import UNPROTECTED, Trace
from autofit_workers.spec.versions import supported_releases
from autofit_workers.trials.door import SELF_TEST_BATCH_SIZE, findings

_WORKERS = Path(autofit_workers.__path__[0])
_TRACING = _WORKERS / "tracing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Result of a self-test of predictions with the installed PyTorch.

    Attributes:
        findings: phrases for what does not work; empty if everything works.
        unprotected: sentence on what a predicted workload could change on this machine, as it cannot be
            isolated; empty if it is isolated.
        unusable: sentence on why PyTorch itself is not usable as it is installed, and what to do; empty if it
            is.
    """

    torch_version: str
    findings: tuple[str, ...]
    unprotected: str = ""
    unusable: str = ""


def run_self_test(run: Runner) -> SelfTest:
    """Runs the self-test: predicts a tiny workload whose memory events on a GPU are known.

    Args:
        run: runs a trial, one prediction in a process of its own.
    """
    workload = WorkloadRef(kind="file", target=f"{_TRACING / 'self_test.py'}:workload")
    outcome = run(TrialSpec(workload=workload, batch_size=SELF_TEST_BATCH_SIZE, probe=Probe.PREDICT))
    version, unprotected, unusable = importlib.metadata.version("torch"), "", ""
    if outcome.trace_json is not None:
        found, unprotected = _findings_in(outcome.trace_json)
        imported = outcome.environment.get("torch", version)
        if imported.partition("+")[0] != version.partition("+")[0]:
            unusable = (
                f"two PyTorch are on Python's path, {version} by its metadata and {imported} by `import "
                "torch`: remove one of them"
            )
            found = (unusable,)
    elif outcome.verdict is Verdict.FAILED and outcome.error and outcome.error.kind == "environment":
        unusable = outcome.error.message
        found = (unusable,)
    else:  # a hook that no longer fits raises, or ends the process by SIGABRT
        why = f": {outcome.error.message}" if outcome.error else ""
        found = (f"tracing ended {outcome.verdict}{why}",)
    return SelfTest(torch_version=version, findings=found, unprotected=unprotected, unusable=unusable)


def _findings_in(trace_json: str) -> tuple[tuple[str, ...], str]:
    """Phrases for what fails in a self-test's trace, and the trace's note on missing protection."""
    try:
        trace = Trace.from_json(trace_json)
        return findings(trace), next((note for note in trace.notes if note.startswith(UNPROTECTED)), "")
    except ValueError as error:
        return (str(error),), ""


def checked(run: Runner) -> Runner:
    """Wraps `run` so that before its first call a self-test has to pass.

    Args:
        run: runs a trial, one prediction in a process of its own.
    """
    is_known, lock = False, threading.Lock()

    def run_checked(spec: TrialSpec) -> TrialOutcome:
        nonlocal is_known
        with lock:
            if not is_known:
                require_prediction(run)
                is_known = True
        return run(spec)

    return run_checked


def require_prediction(run: Runner) -> None:
    """Checks that predictions work with the installed PyTorch, by a self-test that is run only once.

    Raises:
        UnusablePyTorchError: predictions do not work with this PyTorch; the message names the release, what
            failed, and what to do.
    """
    remembered = f"self-test-{_build()}.json"
    if (paths.cache_path() / remembered).is_file():
        return
    result = run_self_test(run)
    if result.findings:
        raise UnusablePyTorchError(
            result.unusable
            or f"memory cannot be predicted with PyTorch {result.torch_version}: "
            f"{'; '.join(result.findings)}. Install PyTorch {supported_releases()}, or measure instead "
            "(--probe measure, or --device cpu)"
        )
    paths.keep(paths.cache_dir, remembered, lambda: json.dumps({"torch": result.torch_version}))


@functools.cache
def _build() -> str:
    """Digest of PyTorch's version and place, the platform, and the code that relies on internals, in hex."""
    spec = importlib.util.find_spec("torch")
    where = "" if spec is None else str(spec.origin)
    build = (importlib.metadata.version("torch"), where, sys.platform, platform.machine())
    digest = hashlib.sha256(" ".join(build).encode())
    for source in sorted([*_TRACING.rglob("*.py"), *(_WORKERS / "pytorch").rglob("*.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
