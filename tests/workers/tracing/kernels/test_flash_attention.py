"""What FlashAttention's operators return and take, by the sizes in its source; see `flash_workloads`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run

FILE = Path(__file__).parent / "flash_workloads.py"
BATCH, ROWS, HEADS, KEY_HEADS, SIZE, KEPT = 2, 200, 8, 4, 40, 150  # heads of 36 numbers, padded
PADDED_ROWS, WIDTH = 256, 64


class Taken(NamedTuple):
    """Of one call: the shapes that it returned, and its scratch memory."""

    returned: list[tuple[int, ...]]
    scratch: list[tuple[str, tuple[int, ...]]]


def outcome(attribute: str, batch_size: int = BATCH) -> TrialOutcome:
    reference = WorkloadRef(kind="file", target=f"{FILE}:{attribute}")
    return run(TrialSpec(workload=reference, batch_size=batch_size, probe=Probe.PREDICT))


def traced(attribute: str, batch_size: int = BATCH) -> Trace:
    found = outcome(attribute, batch_size)
    assert found.trace_json is not None, found.error
    return Trace.from_json(found.trace_json)


def taken(trace: Trace, operator: str) -> Taken:
    """Of the first of three steps."""
    made = [a for a in trace.allocations if a.operator == operator]
    made = made[: len(made) // 3]
    return Taken(
        [a.shape for a in made if a.scratch is None],
        [(a.scratch.formula, a.scratch.dimensions) for a in made if a.scratch is not None],
    )


def test_a_forward_pass_returns_padded_heads_and_sums_of_rows() -> None:
    forward = taken(traced("fa2"), "flash_attn._flash_attn_forward")
    assert forward.returned == [(BATCH, ROWS, HEADS, SIZE), (BATCH, HEADS, ROWS), (2,)]
    call = (BATCH, HEADS, ROWS, ROWS, SIZE)
    splits = "flash2_forward_splits"
    assert forward.scratch == [(splits, (*call, 1)), (splits, (*call, WIDTH))]


def test_with_dropout_keys_are_not_split() -> None:
    assert taken(traced("dropping"), "flash_attn._flash_attn_forward").scratch == []


def test_a_backward_pass_adds_up_in_float32_and_expands_keys_that_heads_share() -> None:
    backward = taken(traced("fa2"), "flash_attn._flash_attn_backward")
    assert backward.returned == [(BATCH, HEADS, PADDED_ROWS)]
    expanded = ("elements", (BATCH, ROWS, HEADS, SIZE))
    assert backward.scratch == [("elements", (BATCH * PADDED_ROWS, HEADS, WIDTH)), expanded, expanded]


def test_a_deterministic_one_adds_up_several_times() -> None:
    first = taken(traced("ordered"), "flash_attn._flash_attn_backward").scratch[0]
    assert first == ("flash2_query_gradient_splits", (BATCH, HEADS, BATCH * PADDED_ROWS, WIDTH))


def test_sequences_one_after_the_other_are_spaced_by_a_tile() -> None:
    trace, tokens = traced("packed_fa2"), BATCH * KEPT
    forward = taken(trace, "flash_attn._flash_attn_varlen_forward")
    assert forward == Taken([(tokens, HEADS, SIZE), (HEADS, tokens), (2,)], [])
    backward = taken(trace, "flash_attn._flash_attn_varlen_backward")
    spaced, expanded = tokens + 128 * BATCH, ("elements", (tokens, HEADS, SIZE))
    assert backward == Taken([(HEADS, spaced)], [("elements", (spaced, HEADS, WIDTH)), expanded, expanded])


@pytest.mark.parametrize(("attribute", "num_results"), [("rotated", 2), ("rotated_in_place", 0)])
def test_rotary_angles_are_copied_while_a_pass_runs_and_only_its_result_stays(
    attribute: str, num_results: int
) -> None:
    trace = traced(attribute)
    results = taken(trace, "aten.empty_like").returned
    assert results.count((BATCH, ROWS, HEADS, 36)) == num_results  # of forward and backward
    assert taken(trace, "aten.clone").returned.count((ROWS, 18)) == 4
    before_backward = next(mark.position for mark in trace.marks if mark.name == "step 1 backward")
    copies = {i for i, a in enumerate(trace.allocations) if a.shape == (ROWS, 18)}
    alive = {e for e in trace.events[:before_backward] if e >= 0 and ~e not in trace.events[:before_backward]}
    assert not copies & alive


def test_flash_attention_3_sizes_its_sums_by_the_tiles_of_a_card() -> None:
    trace = traced("fa3")
    forward = taken(trace, "flash_attn_3._flash_attn_forward")
    assert forward == Taken([(BATCH, ROWS, HEADS, 128), (BATCH, HEADS, ROWS)], [])
    backward = taken(trace, "flash_attn_3._flash_attn_backward")
    causal, keys = 1, ("flash3_keys", (BATCH, KEY_HEADS, ROWS, 128))
    rows = [("flash3_rows", (BATCH, HEADS, ROWS, 128, causal, numbers)) for numbers in (1, 1, 128)]
    assert backward == Taken([], [*rows, keys, keys])
    packed = taken(traced("packed_fa3"), "flash_attn_3._flash_attn_backward")
    formulas = [formula for formula, _ in packed.scratch]
    assert formulas == ["flash3_packed_rows"] * 3 + ["flash3_packed_keys"] * 2


def test_pytorchs_kernel_takes_the_same_where_another_library_calls_it() -> None:
    backward = taken(traced("efficient"), "aten._efficient_attention_backward")
    sums, tiles = ("elements", (BATCH, HEADS, ROWS)), "efficient_query_gradient"
    assert backward.scratch[-2:] == [sums, (tiles, (BATCH, HEADS, ROWS, SIZE))]


@pytest.mark.parametrize("attribute", ["fa2", "packed_fa2", "packed_fa3"])
def test_sizes_at_other_batches_follow_from_three(attribute: str) -> None:
    curve = PeakCurve.through([traced(attribute, size) for size in (2, 3, 5)])
    direct = PeakCurve.through([traced(attribute, 16)])

    def peak_bytes(of: PeakCurve) -> int:
        return of.on_card(16, Conditions()).likely().replay.peak_allocated_bytes

    assert peak_bytes(curve) == peak_bytes(direct)


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        (
            "in_fp32",
            "FlashAttention takes fp16 and bf16 alone, and queries are float32: convert the model",
        ),
        ("too_wide", "heads of at most 256 numbers, and these have 264"),
        ("odd_fa3", "FlashAttention 3 takes heads of a multiple of 8 numbers, and these have 36"),
    ],
)
def test_what_the_library_refuses_is_refused(attribute: str, said: str) -> None:
    error = outcome(attribute).error
    assert error is not None
    assert (error.kind, said in error.message) == ("inapplicable", True), error.message


MISTRAL = {
    "model_type": "mistral",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def of_transformers(folder: Path, attention: str) -> Trace:
    pytest.importorskip("transformers", exc_type=ImportError)
    configuration = folder / "config.json"
    configuration.write_text(json.dumps(MISTRAL))
    found = run(
        TrialSpec(
            workload=WorkloadRef(kind="library", target=f"hf:{configuration}"),
            batch_size=2,
            probe=Probe.PREDICT,
            knobs=Knobs(precision="bf16", attention=attention),
        )
    )
    assert found.trace_json is not None, found.error
    return Trace.from_json(found.trace_json)


@pytest.mark.parametrize(
    ("attention", "operator", "library"),
    [
        ("fa2", "flash_attn._flash_attn_forward", "flash-attn"),
        ("fa3", "flash_attn_3._flash_attn_forward", "flash-attn-3"),
        ("eager", "aten._softmax", None),
    ],
)
def test_a_model_of_transformers_takes_what_it_is_told(
    attention: str, operator: str, library: str | None, tmp_path: Path
) -> None:
    trace = of_transformers(tmp_path, attention)
    modules = {a.module for a in trace.allocations if a.operator == operator}
    assert modules == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    if library is not None and importlib.util.find_spec("flash_attn") is None:
        (note,) = trace.notes
        assert note.startswith(f"{library} is not installed here")


def test_another_model_in_the_same_process_looks_for_libraries_as_they_are(tmp_path: Path) -> None:
    of_transformers(tmp_path, "fa2")
    trace = of_transformers(tmp_path, "default")
    assert trace.model is not None
    assert trace.model.model_class == "MistralForCausalLM"
    assert not trace.notes
    assert not any("flash_attn" in a.operator for a in trace.allocations)


def test_a_batch_without_padding_is_attended_without_a_mask_as_on_a_gpu(tmp_path: Path) -> None:
    trace = of_transformers(tmp_path, "default")
    attended = {a.operator for a in trace.allocations if "scaled_dot_product" in a.operator}
    assert "aten._scaled_dot_product_flash_attention" in attended  # which takes none
    assert not any("efficient" in operator for operator in attended)
