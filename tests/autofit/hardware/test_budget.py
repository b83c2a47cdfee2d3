from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import BudgetError
from autofit.hardware.budget import make_budget, outside_allocator, shown_by
from autofit.hardware.gpus import Gpu, catalogue
from autofit_workers.spec.architecture import Vendor
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
    with pytest.raises(ValueError, match="margin must be at least 0 and less than 1"):
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
