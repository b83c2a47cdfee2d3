"""Operators that are not PyTorch's: followed as they are registered, flagged or named where they are not."""

from __future__ import annotations

import itertools
from pathlib import Path

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.corrections import CORRECTION_NAMES
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run

FILE = Path(__file__).parent / "registered.py"
ROWS_BYTES = 4 * 16 * 4  # a batch of four


def outcome(attribute: str, batch_size: int = 4) -> TrialOutcome:
    reference = WorkloadRef(kind="file", target=f"{FILE}:{attribute}")
    return run(TrialSpec(workload=reference, batch_size=batch_size, probe=Probe.PREDICT))


def traced(attribute: str, batch_size: int = 4) -> Trace:
    found = outcome(attribute, batch_size)
    assert found.trace_json is not None, found.error
    return Trace.from_json(found.trace_json)


def taken(trace: Trace, operator: str) -> list[tuple[int, tuple[int, ...] | None]]:
    """Of the first call of an operator: the bytes of outputs, and the dimensions of scratch memory."""
    made = [a for a in trace.allocations if a.operator == f"tests_kernels.{operator}"]
    pieces = [(a.num_bytes, None if a.scratch is None else a.scratch.dimensions) for a in made]
    return pieces[: len(pieces) // 3]


def test_scratch_memory_lives_beside_the_outputs_and_ends_with_the_call() -> None:
    trace = traced("known")
    assert taken(trace, "with_shapes") == [(ROWS_BYTES, None), (0, (3 * ROWS_BYTES,)), (0, (4096,))]
    called = [i for i, a in enumerate(trace.allocations) if a.operator == "tests_kernels.with_shapes"]
    output, first, second = called[:3]
    begin = trace.events.index(output)
    assert trace.events[begin : begin + 3] == (output, first, second)
    freed = itertools.takewhile(lambda event: event < 0, trace.events[begin + 3 :])
    assert {~first, ~second} <= set(freed)
    assert trace.notes == ()


def test_what_is_registered_says_what_an_operator_without_a_fake_function_returns() -> None:
    trace = traced("followed")
    assert taken(trace, "without_shapes") == [(3 * ROWS_BYTES, None), (4 * 4, None)]
    assert trace.notes == ()


def test_an_operator_that_nobody_registered_is_followed_by_its_outputs_and_flagged_once() -> None:
    trace = traced("stranger")
    assert taken(trace, "stranger") == [(ROWS_BYTES, None)] * 2
    (note,) = trace.notes
    assert "tests_kernels::stranger is not one of PyTorch's: followed by its outputs" in note


def test_one_that_cannot_be_followed_is_named_with_the_lines_that_register_it() -> None:
    error = outcome("nameless").error
    assert error is not None
    assert error.kind == "unsupported"
    assert "tests_kernels.nameless" in error.message
    assert "import autofit; autofit.register_kernel('tests_kernels::nameless'" in error.message
    assert "outputs=lambda rows, scale:" in error.message


def test_outputs_in_another_number_than_the_operators_are_refused() -> None:
    error = outcome("wrong").error
    assert error is not None
    assert "tests_kernels::wrong returned 2 results, where the operator returns 1" in error.message


def test_it_is_counted_at_every_batch_size() -> None:
    curve = PeakCurve.through([traced("known", size) for size in (4, 6, 8)])

    def peak_bytes(conditions: Conditions) -> int:
        return curve.on_card(1000, conditions).likely().replay.peak_allocated_bytes

    without = Conditions(corrections=CORRECTION_NAMES - {"kernels"})
    assert peak_bytes(Conditions()) - peak_bytes(without) > 0
