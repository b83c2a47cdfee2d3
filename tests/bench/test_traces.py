"""The names of the folders that traces are kept in."""

from __future__ import annotations

from tests.bench.traces import _TRACING_MODULES, ROOT, _import_closure


def test_the_digest_is_of_the_code_that_traces_and_of_none_that_replays() -> None:
    files = _import_closure(_TRACING_MODULES)
    package = ROOT / "workers" / "autofit_workers"
    assert {
        package / "tracing" / "probe.py",
        package / "tracing" / "fake" / "fake_device.py",
        ROOT / "tests/bench/tracer.py",
    } <= files
    assert package / "replay" / "curve" / "peak_curve.py" not in files
    assert all(file.exists() for file in files)
