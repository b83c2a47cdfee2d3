"""What a reduction takes that several blocks share."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.replay.curve.scratch.reductions import Processors, reduction_bytes
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch

A100, H100 = (Processors(num=num, threads=2048) for num in (108, 132))
AMPERE = Architecture.of("sm_86")
MIB = 1024**2


def taken(num_inputs: int, num_outputs: int, card: Processors = A100, width: int = 0) -> int:
    dimensions = (num_inputs, num_outputs, width or num_outputs)
    return reduction_bytes(Scratch(formula="reduction", dimensions=dimensions, element_bytes=4), card)


@pytest.mark.parametrize(
    ("num_outputs", "on_a100", "on_h100"),
    [(1024, 16, 16), (2048, 32, 32), (4096, 64, 64), (8192, 108, 128), (16384, 112, 136), (32768, 112, 144)],
)
def test_sums_of_2048_rows_take_what_they_were_seen_to_take(
    num_outputs: int, on_a100: int, on_h100: int
) -> None:
    """Beside what `max_memory_allocated` of Liger's benchmarks shows of two norms in backward."""
    assert taken(2048, num_outputs) == on_a100 * MIB
    assert taken(2048, num_outputs, card=H100) == on_h100 * MIB


def test_few_rows_and_many_outputs_are_not_shared() -> None:
    assert taken(128, 4096) == 0
    assert taken(2048, 1024 * 1024) == 0


def test_outputs_that_do_not_divide_by_four_are_taken_in_smaller_vectors() -> None:
    assert taken(2048, 1022) == taken(2048, 1022, width=2) < taken(2048, 1024)


def test_a_card_with_fewer_multiprocessors_than_others_of_its_architecture_takes_less() -> None:
    scratch = Scratch(formula="reduction", dimensions=(2048, 8192, 8192), element_bytes=4)
    typical, small = Platform(AMPERE, (2, 13)), Platform(AMPERE, (2, 13), own_multiprocessors=28)
    assert 0 < scratch_bytes(scratch, small) < scratch_bytes(scratch, typical)
