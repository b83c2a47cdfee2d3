"""Steps whose values decide: what is known is followed, what is not is assumed and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.trace import Trace

KEPT = 12_345  # numbers that a workload keeps on the device
SOURCE = Path(__file__).parent / "small_workloads.py"


def line_of(attribute: str) -> int:
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.startswith(f"{attribute} = "))
    return line


@pytest.mark.parametrize(
    ("attribute", "operator", "what"),
    [
        ("nonzero", "aten.nonzero", "elements that are not zero"),
        ("boolean_index", "aten.nonzero", "elements that are not zero"),
        ("different", "aten._unique2", "different values"),
        ("different_alone", "aten._unique2", "different values"),
        ("different_rows", "aten.unique_dim", "different values"),
        ("different_neighbours", "aten.unique_consecutive", "different values"),
    ],
)
def test_a_size_that_depends_on_values_is_assumed_with_its_line(attribute, operator, what, outcome_of):
    trace = Trace.from_json(outcome_of(attribute).trace_json)
    (assumed,) = trace.assumptions
    assert assumed.site == f"{SOURCE}:{line_of(attribute)}:<lambda>"
    assert assumed.what == what
    assert assumed.size == assumed.largest // 2
    results = [a.shape for a in trace.allocations if a.operator == operator]
    assert results and results[0][0] == assumed.size


def test_different_values_of_what_is_known_are_known(outcome_of):
    trace = Trace.from_json(outcome_of("known_rows").trace_json)
    assert trace.assumptions == ()
    assert next(a.shape for a in trace.allocations if a.operator == "aten.unique_dim") == (3,)


def test_masks_that_are_computed_from_known_values_are_known_whatever_their_size(outcome_of):
    outcome = outcome_of("large_known_masks")
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.assumptions == ()
    assert (2048, 30) in {a.shape for a in trace.allocations if a.operator == "aten.cat"}


def test_what_one_number_fills_takes_no_memory_of_the_host(outcome_of):
    outcome = outcome_of("beyond_this_machine")
    assert outcome.trace_json is not None, outcome.error
    filled = [a.num_bytes for a in Trace.from_json(outcome.trace_json).allocations if a.num_bytes == 2**44]
    assert len(filled) == 3 * 3  # of three steps


def test_the_assumed_share_can_be_told(outcome_of):
    outcome = outcome_of("nonzero", share=1.0)
    (assumed,) = Trace.from_json(outcome.trace_json).assumptions
    assert assumed.size == assumed.largest


def test_a_ctc_loss_keeps_alpha_of_the_longest_target_and_beta_beside_it(outcome_of):
    outcome = outcome_of("spelled")
    trace = Trace.from_json(outcome.trace_json)
    assert trace.assumptions == ()
    (alpha, *rest) = [a.shape for a in trace.allocations if a.shape[-1:] == (2 * 3 + 1,)]
    assert alpha[0] == 4
    assert alpha in rest, "beta"


@pytest.mark.parametrize("attribute", ["item", "to_numpy", "several_items", "asserted"])
def test_numbers_that_are_read_and_only_computed_with_assume_nothing(attribute, outcome_of):
    outcome = outcome_of(attribute)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert Trace.from_json(outcome.trace_json).assumptions == ()


def test_lengths_of_packed_sequences_come_from_the_cpu_and_are_known(outcome_of):
    outcome = outcome_of("packed")
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.assumptions == ()
    packed = [a.shape for a in trace.allocations if a.operator == "aten._pack_padded_sequence"]
    assert packed
    assert all(shape[0] % 5 == 0 for shape in packed)  # five steps of every sequence


def test_a_tensor_that_stays_on_the_device_between_predictions_is_followed_in_a_fresh_process(outcome_of):
    first, second = (outcome_of("keeps_a_tensor_on_the_device", batch_size) for batch_size in (4, 6))
    assert (first.verdict, second.verdict) == (Verdict.TRACED, Verdict.TRACED), second.error
    made = [[a.num_bytes for a in Trace.from_json(each.trace_json).allocations] for each in (first, second)]
    assert 4 * KEPT in made[0] and 4 * KEPT in made[1]


def test_where_a_branch_on_an_unknown_value_fails_the_other_way_is_taken(outcome_of):
    outcome = outcome_of("fails_one_way")
    assert outcome.verdict is Verdict.TRACED, outcome.error
    (note,) = Trace.from_json(outcome.trace_json).notes
    assert f"{SOURCE}:" in note and "was taken as False" in note


def test_what_one_step_read_leaves_the_predictor_as_it_was(outcome_of):
    before = outcome_of("perceptron").trace_json
    assert outcome_of("nonzero").verdict is Verdict.TRACED
    assert outcome_of("perceptron").trace_json == before
