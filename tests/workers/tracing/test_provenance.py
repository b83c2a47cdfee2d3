"""Every allocation says what it holds, which module made it and on which of the user's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.conftest import is_output

SOURCE = Path(__file__).parent / "small_workloads.py"


def line_of(text: str) -> int:
    (number,) = (
        n for n, line in enumerate(SOURCE.read_text(encoding="utf-8").splitlines(), 1) if text in line
    )
    return number


def test_a_trace_is_marked_at_every_phase_of_every_step(steps_of):
    phases = [
        f"step {n} {phase}" for n in (1, 2, 3) for phase in ("input", "forward", "backward", "optimizer")
    ]
    assert [mark.name for mark in steps_of("perceptron").trace.marks] == ["model", *phases]
    inferences = [f"step {n} {phase}" for n in (1, 2, 3) for phase in ("input", "forward")]
    assert [mark.name for mark in steps_of("perceptron", mode="infer").trace.marks] == ["model", *inferences]


def test_a_step_of_the_users_own_is_one_phase(steps_of):
    phases = [f"step {n} {phase}" for n in (1, 2, 3) for phase in ("input", "forward")]
    assert [mark.name for mark in steps_of("accumulating").trace.marks] == ["model", *phases]


def test_each_phase_has_its_category(steps_of):
    steps = steps_of("perceptron", optimizer="adam")
    assert {a.category for a in steps.allocations("input")} == {"input"}
    assert {a.category for a in steps.allocations("forward")} == {"activation"}
    assert {a.category for a in steps.allocations("backward")} == {"gradient", "other", "workspace"}
    assert {a.category for a in steps.allocations("optimizer")} == {"other"}
    assert {a.category for a in steps.allocations("optimizer", step=1)} == {"optimizer_state", "other"}
    assert {a.category for a in steps.live("step 1 input")} == {"parameter"}


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_a_module_makes_bears_its_path_in_both_directions(phase, steps_of):
    modules = [a.module for a in steps_of("perceptron").allocations(phase) if a.module and is_output(a)]
    expected = {"forward": ["0", "1", "2"], "backward": ["2", "2", "2", "1", "0", "0"]}
    assert modules == expected[phase]


def test_the_innermost_line_of_the_users_code_is_named(steps_of):
    steps = steps_of("attention")
    line = line_of("return functional.scaled_dot_product_attention(")
    made = steps.allocations("forward") + steps.allocations("backward")
    fused = {a.source for a in made if "attention" in a.operator}
    assert fused == {f"{SOURCE}:{line}:forward"}


def test_what_no_line_of_the_user_asks_for_names_none(steps_of):
    steps = steps_of("perceptron", optimizer="adam")
    assert {a.source for a in steps.allocations("optimizer", step=1)} == {""}
    assert {a.source for a in steps.live() if a.category == "parameter"} == {""}
