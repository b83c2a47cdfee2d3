"""Steps that need values are refused, with the operator, the user's line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.protocol import Verdict

SOURCE = Path(__file__).parent / "small_workloads.py"


@pytest.mark.parametrize(
    ("attribute", "operator"),
    [
        ("nonzero", "aten.nonzero.default"),
        ("boolean_index", "aten.nonzero.default"),
        ("item", "aten._local_scalar_dense.default"),
        ("to_numpy", "aten._local_scalar_dense.default"),
    ],
)
def test_the_operator_and_the_users_line_are_named(attribute, operator, outcome_of):
    outcome = outcome_of(attribute)
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.startswith(f"{attribute} = "))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "data-dependent"
    assert outcome.error.message.startswith(f"{operator} at {SOURCE}:{line}:<lambda> depends on values")
    assert "measure instead" in outcome.error.message
    assert outcome.trace_json is None


def test_packed_sequences_are_refused_for_their_lengths_are_values(outcome_of):
    outcome = outcome_of("packed")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "data-dependent"
    assert "aten._pack_padded_sequence.default" in outcome.error.message
    assert "measure instead" in outcome.error.message


def test_a_refused_step_leaves_the_predictor_as_it_was(outcome_of, trace_of):
    before = outcome_of("perceptron").trace_json
    assert outcome_of("nonzero").verdict is Verdict.FAILED
    assert outcome_of("perceptron").trace_json == before
