"""Runs a test with the mark `memory`: the workload that it returns is predicted and judged."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autofit import api
from autofit.errors import UsageError
from autofit.locks.configurations import tolerance_of
from autofit.locks.growth import Comparison, compare
from autofit.locks.lock_file import LockedPeak, read_lock_if_any, require_name
from autofit.locks.locking import peak_of, predictor_for_locks
from autofit.questions.check import check_curve, checked_curve
from autofit.testing.judging import Limits, problems_of
from autofit.testing.names import MARK, TOLERANCE, UPDATE, found_of_item
from autofit.testing.outcomes import as_outcomes
from autofit.testing.records import found, lock_path
from autofit.units import parse_bytes
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.door import Workload

_WHAT = "a test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Arguments of the mark `memory`.

    Attributes:
        batch_size: samples of a batch; None for a script's own.
        tolerance: share by which the peak may be higher than the one in the lock.
        max_peak_bytes: most bytes of the likely peak; None where the test gives none.
        options: the other arguments, options of `autofit.check`.
    """

    batch_size: int | None
    tolerance: Decimal
    max_peak_bytes: int | None
    options: Mapping[str, Any]


def run_marked(item: pytest.Function) -> None:
    """Calls a test's function, predicts the workload that it returns, and fails for what is wrong."""
    names = item._fixtureinfo.argnames  # noqa: SLF001 - pytest itself calls tests by these
    with as_outcomes():
        asked = _asked(item)
    returned = item.obj(**{name: item.funcargs[name] for name in names})
    with as_outcomes():
        workload = _workload(returned)
        problems = _judged(item, asked, workload)
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)


def _asked(item: pytest.Function) -> Asked:
    """Arguments of a test's marks; those of an outer mark, such as of the class, count unless repeated.

    Raises:
        UsageError: an argument is missing or wrong.
    """
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARK))):
        if mark.args:
            raise UsageError(f"the mark {MARK} takes named arguments alone, such as gpu='t4', batch_size=64")
        options.update(mark.kwargs)
    batch_size = options.pop("batch_size", None)
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise UsageError(f"batch_size of the mark {MARK} is a whole number from 1 on, not {batch_size!r}")
    if options.get("gpu") is None and options.get("gpu_mem") is None:
        raise UsageError(
            f"the mark {MARK} names no card: add gpu='t4', say (`autofit gpus` lists them), or gpu_mem='16G'"
        )
    tolerance = options.pop("tolerance", None)
    label = f"tolerance of the mark {MARK}"
    if tolerance is None:
        tolerance, label = item.config.getini(TOLERANCE) or None, f"{TOLERANCE} of pytest's settings"
    return Asked(
        batch_size=batch_size,
        tolerance=tolerance_of(tolerance, label),
        max_peak_bytes=_bytes_of(options.pop("max_peak", None)),
        options=options,
    )


def _bytes_of(limit: object) -> int | None:
    if limit is None or (type(limit) is int and limit > 0):
        return limit if isinstance(limit, int) else None
    try:
        return parse_bytes(str(limit))
    except ValueError as error:
        raise UsageError(f"max_peak of the mark {MARK}: {error}") from error


def _workload(returned: object) -> Workload | Script | str:
    if isinstance(returned, Workload | Script | str):
        return returned
    what = "nothing" if returned is None else type(returned).__name__
    raise UsageError(
        f"a test with the mark {MARK} returns the workload to predict, and this one returned {what}: return "
        "an autofit.Workload, or a model as `autofit tune --model` takes it, such as 'train.py:workload'"
    )


def _judged(item: pytest.Function, asked: Asked, workload: Workload | Script | str) -> list[str]:
    """Problems of a test's workload, each a block of text; notes what was found out for the lock."""
    folder, name = item.config.rootpath, require_name(item.nodeid)
    with _importable(item.module, folder):
        settings, reference = api.described(workload, dict(asked.options), _WHAT)
    if reference.script is None and asked.batch_size is None:
        raise UsageError(f"the mark {MARK} says no batch size: add batch_size=64, say")
    predictor = predictor_for_locks(reference, settings)
    batch_size = asked.batch_size
    if batch_size is None:
        batch_size = predictor.traces.own_batch_size(settings.configuration(_WHAT))
    target, curve = checked_curve(settings, predictor, batch_size)
    checked = check_curve(curve, batch_size, target.budget, target.device)
    peak = peak_of(curve(batch_size), curve.profile(batch_size), settings, folder)
    compared = _compared(item, peak, asked.tolerance)
    updates = bool(item.config.getoption(UPDATE))
    limits = Limits(tolerance=asked.tolerance, max_peak_bytes=asked.max_peak_bytes, updates=updates)
    item.stash[found_of_item] = found(checked, peak, compared)
    return problems_of(name, checked, peak, compared, limits)


def _compared(item: pytest.Function, peak: LockedPeak, tolerance: Decimal) -> Comparison:
    """Comparison of a test's peak with the one in the lock, if there is one."""
    locked = read_lock_if_any(lock_path(item.config)).configurations.get(item.nodeid)
    before = None if locked is None else locked.peak(peak.torch, peak.gpu)
    return compare(item.nodeid, before, peak, tolerance)


@contextmanager
def _importable(module: ModuleType, root: Path) -> Iterator[None]:
    """Context in which a workload of a test module can be sent to the process that predicts.

    That process imports the module anew, from a folder of `sys.path` or from the root. A module that it would
    not find there under its name is sent along instead.
    """
    top, _, rest = module.__name__.partition(".")
    sys.path.append(str(root))
    try:
        spec = PathFinder.find_spec(top, sys.path)
        is_found = spec is not None and (bool(rest) or spec.origin == module.__file__)
        if is_found:
            yield
            return
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    finally:
        sys.path.remove(str(root))
