"""Which attention kernel a prediction takes, and what each allocates. Heads of 4×2×6×8 numbers."""

from __future__ import annotations

import pytest

HEADS_BYTES = 4 * 2 * 6 * 8 * 4
SCORES_BYTES = 4 * 2 * 6 * 6 * 4
KERNEL = "_scaled_dot_product_{}_attention"


def forward(steps_of, attribute="attention", **settings):
    return [name for name, _ in steps_of(attribute, **settings).outputs("forward") if "attention" in name]


@pytest.mark.parametrize(
    ("attention", "precision"),
    [("flash", "amp-bf16"), ("efficient", "fp32"), ("efficient", "amp-bf16"), ("cudnn", "amp-bf16")],
)
def test_a_named_kernel_is_the_one_that_runs(attention, precision, steps_of):
    kernels = forward(steps_of, attention=attention, precision=precision)
    assert set(kernels) == {KERNEL.format(attention)}


def test_math_computes_all_scores_where_a_fused_kernel_could_run(steps_of):
    outputs = steps_of("attention", attention="math").outputs("forward")
    assert [output for output in outputs if output[1] == SCORES_BYTES] == [
        ("bmm", SCORES_BYTES),
        ("softmax.int", SCORES_BYTES),
    ]


@pytest.mark.parametrize(
    ("attribute", "attention", "precision", "tensors"),
    [
        ("attention", "flash", "fp32", "queries of float32 and shape (4, 2, 6, 8)"),
        ("attention", "cudnn", "fp32", "queries of float32"),
        ("masked_attention", "flash", "amp-bf16", "queries of bfloat16 and shape (4, 2, 6, 8) with a mask"),
        ("odd_attention", "efficient", "fp32", "queries of float32 and shape (4, 2, 6, 7)"),
    ],
)
def test_a_kernel_that_does_not_take_the_tensors_is_refused_by_them(
    attribute, attention, precision, tensors, outcome_of
):
    error = outcome_of(attribute, attention=attention, precision=precision).error
    assert error.kind == "inapplicable"
    assert f"no attention kernel that is enabled takes {tensors}" in error.message
    assert "--attention" in error.message


def test_cudnn_accumulates_a_number_for_each_row_and_each_of_the_querys_gradient(steps_of):
    steps = steps_of("attention", attention="cudnn", precision="amp-bf16")
    (scratch,) = {
        (a.scratch.formula, a.scratch.dimensions, a.scratch.element_bytes)
        for a in steps.allocations("backward", step=2)
        if a.scratch is not None and a.operator == "aten._scaled_dot_product_cudnn_attention_backward"
    }
    assert scratch == ("cudnn_query_gradient", (4, 2, 6, 8), 4)


def test_a_model_that_chooses_its_kernel_itself_is_followed(steps_of):
    assert forward(steps_of, "chosen_attention") == []


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_boolean_mask_becomes_one_in_the_queries_type_at_once(precision, steps_of):
    outputs = steps_of("masked_attention", precision=precision).outputs("forward")
    element_bytes = 4 if precision == "fp32" else 2
    made = [size for name, size in outputs if name.startswith(("where", "_to_copy")) and size >= 36]
    assert 6 * 6 * element_bytes in made
    assert precision == "fp32" or 6 * 6 * 4 not in made
