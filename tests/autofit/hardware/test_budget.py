from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import BudgetError
from autofit.hardware.budget import (
    assumed_context,
    budget_among,
    budget_of,
    make_budget,
    outside_allocator,
    shown_by,
)
from autofit.hardware.context import context_interval
from autofit.hardware.gpus import Gpu, catalogue, find_gpu
from autofit.hardware.nccl import communicators_interval
from autofit.units import format_bytes
from autofit_workers.spec.vendors import Vendor
from tests.each import check_each

MIB = 1024**2
GIB = 1024**3


def test_the_parts_of_a_16_gib_budget_are_exact() -> None:
    budget = make_budget(16 * GIB, architecture="sm_80")
    assert budget.margin_bytes == 515396076  # ceil(0.03 × 17179869184 = 515396075.52)
    assert budget.context_bytes == 638 * MIB
    assert budget.other_bytes == 0
    assert budget.usable_bytes == 17179869184 - 515396076 - 668991488


@pytest.mark.parametrize("margin", [0.03, Decimal("0.03"), Fraction(3, 100)])
def test_a_margin_is_exact_whatever_number_it_is_given_as(margin: float | Decimal | Fraction) -> None:
    # As binary floating point, 0.03 × 10^20 is off by thousands.
    assert make_budget(10**20, architecture="sm_80", margin=margin).margin_bytes == 3 * 10**18


@given(
    total=st.integers(min_value=2 * GIB, max_value=2**50),
    thousandths=st.integers(min_value=0, max_value=500),
    reserve=st.integers(min_value=0, max_value=GIB // 4),
)
def test_the_parts_always_add_up_to_the_total(total: int, thousandths: int, reserve: int) -> None:
    budget = make_budget(
        total, architecture="sm_90", margin=Decimal(thousandths) / 1000, reserve_bytes=reserve
    )
    parts = budget.context_bytes + budget.other_bytes + budget.margin_bytes + budget.usable_bytes
    assert parts == budget.device_total_bytes == total
    assert 0 <= 1000 * budget.margin_bytes - thousandths * total < 1000
    assert budget.other_bytes == reserve


def test_the_context_is_taken_at_its_high_end_and_said_to_be_assumed() -> None:
    budget = make_budget(16 * GIB, architecture="sm_86")
    assert budget.context is not None
    assert budget.context_bytes == budget.context.high_bytes
    assert budget.assumptions == (
        "CUDA context: 435 MiB assumed for sm_86 (likely 315, at least 205; 7 processes seen on "
        "sm_86, 48 in all)",
    )


def test_a_card_with_few_multiprocessors_has_a_small_context() -> None:
    large = make_budget(12 * GIB, architecture="sm_86", card="rtx-3090")
    small = make_budget(12 * GIB, architecture="sm_86", card="NVIDIA GeForce RTX 3060")
    assert (large.context_bytes, small.context_bytes) == (435 * MIB, 258 * MIB)


def test_without_a_card_sm_80_is_assumed_and_said() -> None:
    unnamed, named = make_budget(16 * GIB), make_budget(16 * GIB, architecture="sm_80")
    assert unnamed.usable_bytes == named.usable_bytes
    assert "sm_80, as no card is named" in unnamed.assumptions[0]


def test_an_unlisted_architecture_gets_more_than_the_largest_context_and_says_so() -> None:
    budget = make_budget(16 * GIB, architecture="sm_999")
    assert budget.context_bytes > max(
        make_budget(16 * GIB, architecture=gpu.architecture).context_bytes
        for gpu in catalogue().values()
        if gpu.vendor is Vendor.NVIDIA
    )
    assert "none seen on sm_999: taken from the largest known card" in budget.assumptions[0]


def test_every_card_of_the_catalogue_has_a_budget_for_its_own_architecture() -> None:
    def has_a_budget(gpu: Gpu) -> None:
        budget = make_budget(gpu.total_bytes, architecture=gpu.architecture)
        assert 0 < budget.usable_bytes < gpu.total_bytes
        is_pascals = gpu.architecture in ("sm_60", "sm_61")
        assert ("none seen" in budget.assumptions[0]) == is_pascals

    check_each(catalogue().values(), has_a_budget, name=lambda gpu: gpu.key)


@pytest.mark.parametrize(("architecture", "is_usual"), [("sm_61", False), ("sm_70", False), ("sm_75", True)])
def test_a_card_that_the_usual_wheels_have_no_kernels_for_is_said_to_need_another(
    architecture: str, is_usual: bool
) -> None:
    for mesh in ((), (2,)):
        said = make_budget(16 * GIB, architecture=architecture, mesh=mesh).assumptions
        assert any("whl/cu126" in each for each in said) != is_usual


def test_the_cpu_has_no_context_and_nothing_to_assume() -> None:
    budget = make_budget(1500 * MIB, kind="cpu", margin=0)
    assert (budget.context_bytes, budget.usable_bytes, budget.assumptions) == (0, 1500 * MIB, ())


def test_when_nothing_is_left_the_parts_are_said() -> None:
    with pytest.raises(BudgetError) as caught:
        make_budget(GIB, architecture="sm_80", reserve_bytes=400 * MIB)
    message = str(caught.value)
    for part in ("1.00 GiB", "638.00 MiB", "400.00 MiB", "30.72 MiB", "--gpu-mem", "--reserve", "--margin"):
        assert part in message
    assert caught.value.exit_code == 2


def test_exactly_nothing_left_is_refused_and_one_byte_is_not() -> None:
    with pytest.raises(BudgetError):
        make_budget(638 * MIB, architecture="sm_80", margin=0)
    assert make_budget(638 * MIB + 1, architecture="sm_80", margin=0).usable_bytes == 1


@pytest.mark.parametrize("margin", [1, 3, -0.01, 1.5])
def test_a_margin_that_is_no_share_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match=f"margin must be at least 0 and less than 1, got {margin}$"):
        make_budget(16 * GIB, margin=margin)


def test_on_amd_s_cards_the_context_is_hip_s_and_the_communicator_rccl_s() -> None:
    alone = make_budget(64 * GIB, architecture="gfx90a", card="mi250x")
    assert alone.assumptions[0].startswith("HIP context: 1428 MiB assumed for gfx90a")
    assert "8 processes seen on AMD's cards" in alone.assumptions[0]
    several = make_budget(64 * GIB, architecture="gfx90a", card="mi250x", mesh=(8,))
    assert several.assumptions[1].startswith("RCCL: ")
    assert several.context_bytes > alone.context_bytes
    with pytest.raises(BudgetError, match="for the HIP context and RCCL"):
        make_budget(1 * GIB, architecture="gfx90a", mesh=(8,))


@pytest.mark.parametrize(
    ("architecture", "outside", "tool"),
    [
        (None, "CUDA context", "nvidia-smi"),
        ("sm_90", "CUDA context", "nvidia-smi"),
        ("gfx942", "HIP context", "amd-smi"),
    ],
)
def test_the_vendor_s_own_words_are_used(architecture: str | None, outside: str, tool: str) -> None:
    assert (outside_allocator(architecture, exchanges=False), shown_by(architecture)) == (outside, tool)


@pytest.mark.parametrize(
    ("total", "meant"),
    [(24, "24G"), (1023, "1023G"), (1024, "1024M"), (24_000, "24000M"), (MIB - 1, "1048575M")],
)
def test_a_number_without_its_unit_is_asked_about(total: int, meant: str) -> None:
    with pytest.raises(BudgetError, match=rf"^--gpu-mem {total} is {total} bytes: did you mean {meant}\?$"):
        make_budget(total)


def test_a_mebibyte_is_meant_and_too_little() -> None:
    with pytest.raises(BudgetError) as raised:
        make_budget(MIB)
    assert str(raised.value) == (
        "nothing is left of 1.00 MiB for PyTorch: 638.00 MiB for the CUDA context, 0 B for other processes, "
        "30.72 KiB for the margin. Give a larger --gpu-mem, or a smaller --reserve or --margin"
    )


def test_a_card_s_budget_is_made_of_its_own_memory_architecture_and_key() -> None:
    gpu = find_gpu("rtx-3060")
    plain = make_budget(gpu.total_bytes, architecture=gpu.architecture, card=gpu.key)
    assert budget_of(gpu) == plain
    assert plain.context_bytes < make_budget(gpu.total_bytes, architecture=gpu.architecture).context_bytes
    other = budget_of(gpu, margin=Decimal("0.25"), reserve_bytes=GIB, mesh=(2, 4), num_ranks=8)
    assert (other.margin_bytes, other.other_bytes) == (gpu.total_bytes // 4, GIB)
    assert other.context == assumed_context(gpu.architecture, gpu.key, (2, 4), 8)[0]


def test_ranks_that_train_together_hold_nccl_beside_the_context() -> None:
    context = context_interval("sm_80", "a100-40g")
    nccl = communicators_interval((2, 4), "sm_80", None)
    whole, assumptions = assumed_context("sm_80", "a100-40g", (2, 4))
    assert whole.low_bytes == context.low_bytes + nccl.low_bytes
    assert whole.likely_bytes == context.likely_bytes + nccl.likely_bytes
    assert whole.high_bytes == context.high_bytes + nccl.high_bytes
    assert nccl.low_bytes > 0
    assert whole.basis == f"{context.basis}; NCCL {nccl.basis}"
    assert len(assumptions) == 2
    assert assumptions[0] == assumed_context("sm_80", "a100-40g")[1][0]
    assert assumptions[1].startswith(
        f"NCCL: {nccl.high_bytes // MIB} MiB assumed for each of 8 ranks (likely "
    )
    assert "each of 12 ranks" in assumed_context("sm_80", None, (2, 4), 12)[1][1]
    assert make_budget(40 * GIB, architecture="sm_80", card="a100-40g", mesh=(2, 4)).context == whole


def test_a_budget_among_groups_keeps_all_but_the_context() -> None:
    alone = make_budget(40 * GIB, architecture="sm_86", card="rtx-3060", reserve_bytes=GIB)
    among = budget_among(alone, (4, 2), 8, architecture="sm_86", card="rtx-3060")
    assert (among.context, among.assumptions) == assumed_context("sm_86", "rtx-3060", (4, 2), 8)
    assert among.context is not None
    assert among.context_bytes == among.context.high_bytes > alone.context_bytes
    assert alone.usable_bytes - among.usable_bytes == among.context_bytes - alone.context_bytes
    assert (among.device_total_bytes, among.other_bytes, among.margin_bytes) == (
        alone.device_total_bytes, alone.other_bytes, alone.margin_bytes
    )  # fmt: skip


def test_a_budget_that_the_groups_use_up_is_refused_with_their_number() -> None:
    context_bytes = assumed_context("sm_80", None, (4, 2), 8)[0].high_bytes
    enough, short = (make_budget(context_bytes + spare, architecture="sm_80", margin=0) for spare in (1, 0))
    assert budget_among(enough, (4, 2), 8, architecture="sm_80", card=None).usable_bytes == 1
    with pytest.raises(BudgetError) as caught:
        budget_among(short, (4, 2), 8, architecture="sm_80", card=None)
    said = format_bytes(context_bytes)
    assert str(caught.value).startswith(
        f"nothing is left of {said} for PyTorch: the context and NCCL take {said}"
    )
    assert "2 process groups" in str(caught.value)
    for option in ("--gpu-mem", "--reserve", "--margin"):
        assert option in str(caught.value)


def test_a_process_that_exchanges_holds_a_communicator_outside_too() -> None:
    assert outside_allocator("sm_90", exchanges=True) == "CUDA context and NCCL"
    assert outside_allocator("gfx90a", exchanges=True) == "HIP context and RCCL"
    with pytest.raises(BudgetError, match="for the CUDA context and NCCL, "):
        make_budget(GIB // 2, architecture="sm_80", mesh=(2,))
    with pytest.raises(BudgetError, match="for the CUDA context, "):
        make_budget(GIB // 2, architecture="sm_80")
