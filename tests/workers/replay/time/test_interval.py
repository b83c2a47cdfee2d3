"""How sure a predicted time is, by what real runs were off."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autofit_workers.replay.time.interval import HOST, Confidence, Residual, TimeResiduals, time_residuals
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.replay.time.speeds import Speeds
from autofit_workers.replay.time.step import StepClock

MEASURED = Residual(sigma=0.1, num_rows=100, sources=("a table",))


def speeds(name: str = "a card", architecture: str = "sm_80") -> Speeds:
    return Speeds(
        name=name,
        architecture=architecture,
        num_units=1,
        flops={},
        vector_flops=1.0,
        bandwidth=1.0,
        cache_bytes=0,
    )


def clock(**class_seconds: float) -> StepClock:
    """A step of one second, of which the device waits for what its classes do not take."""
    found = {KernelClass(name): seconds for name, seconds in class_seconds.items()}
    return StepClock((), sum(found.values()), 1.0, found)


def residuals(classes=(), cards=(), **given) -> TimeResiduals:
    """Residuals with the same rows behind each of these."""
    limits = {
        "class_sigma": 0.4,
        "card_sigma": 0.3,
        "setting_sigma": 0.05,
        "other_sigma": 0.2,
        "least_share": 0.9,
        "most_sigma": 0.25,
        **given,
    }
    return TimeResiduals(
        classes=dict.fromkeys(classes, MEASURED), cards=dict.fromkeys(cards, MEASURED), **limits
    )


def test_classes_count_by_their_share_and_the_card_on_top():
    found = residuals(["matmul", HOST], ["a card"]).of(clock(matmul=0.6), speeds())
    assert found.sigma == pytest.approx(math.sqrt((0.6 * 0.1) ** 2 + (0.4 * 0.1) ** 2 + 0.1**2))
    assert found.known_share == pytest.approx(1.0)
    assert not found.unmeasured
    assert found.is_stated


def test_a_class_without_rows_is_wide_and_named():
    known = residuals(["matmul"], ["a card"])
    narrow, wide = (known.of(clock(**of), speeds()) for of in ({"matmul": 1.0}, {"matmul": 0.5, "pool": 0.5}))
    assert wide.sigma > narrow.sigma
    assert wide.unmeasured == ("pool",)
    assert wide.known_share == pytest.approx(0.5)
    assert not wide.is_stated


def test_a_card_without_rows_is_wide_and_named():
    found = residuals(["matmul"], ["another card"]).of(clock(matmul=1.0), speeds("new card", "sm_90"))
    assert not found.is_card_measured
    assert not found.unmeasured
    assert found.sigma >= 0.3
    assert not found.is_stated


def test_an_architecture_speaks_for_its_cards():
    assert residuals(["matmul"], ["sm_80"]).of(clock(matmul=1.0), speeds("any")).is_stated


def test_a_step_with_an_operator_that_nothing_is_known_of_is_not_stated():
    known = residuals(["matmul"], ["a card"])
    assert known.of(clock(matmul=0.995, other=0.005), speeds()).is_stated
    assert not known.of(clock(matmul=0.95, other=0.05), speeds()).is_stated


def test_a_class_that_a_card_has_no_rows_of_is_not_known_there():
    known = residuals(["convolution", "matmul"], ["a card"])
    card = dataclasses.replace(known.cards["a card"], lacks=("convolution",))
    on_card = dataclasses.replace(known, cards={"a card": card})
    assert on_card.of(clock(matmul=1.0), speeds()).is_stated
    found = on_card.of(clock(convolution=1.0), speeds())
    assert found.unmeasured == ("convolution",)
    assert not found.is_stated


def test_what_rows_are_behind_is_not_stated_where_these_are_far_off():
    found = residuals(["matmul"], ["a card"], most_sigma=0.12).of(clock(matmul=1.0), speeds())
    assert not found.unmeasured
    assert not found.is_stated


def test_convolutions_by_another_algorithm_have_residuals_of_their_own():
    known = residuals(["convolution"], ["a card"])
    assert known.of(clock(convolution=1.0), speeds()).is_stated
    found = known.of(clock(convolution=1.0), speeds(), conv_algo="native")
    assert found.unmeasured == ("convolution native",)
    assert not found.is_stated


def test_an_interval_is_a_factor_to_both_sides():
    confidence = Confidence(sigma=0.2, known_share=1.0, unmeasured=(), is_card_measured=True, is_stated=True)
    low, high = confidence.ends(2.0, 0.8)
    assert low * high == pytest.approx(4.0)
    assert math.log(high / 2.0) == pytest.approx(1.2816 * 0.2, rel=1e-3)
    assert confidence.ends(2.0, 0.95)[1] > high


def test_without_rows_no_prediction_of_this_version_is_stated():
    shipped = time_residuals()
    no_card = speeds("a card that nobody measured", "sm_00")
    assert not any(shipped.of(clock(**{kind: 1.0}), no_card).is_stated for kind in KernelClass)


def test_another_schema_is_refused():
    with pytest.raises(ValueError, match="schema"):
        TimeResiduals.from_toml('schema = "autofit.time-residuals/0"')


def test_entries_of_the_file_are_read():
    entry = 'sigma = 0.1\nnum_rows = 100\nsources = ["a table"]\n'
    text = (
        'schema = "autofit.time-residuals/1"\n'
        "[unmeasured]\nclass_sigma = 0.4\ncard_sigma = 0.3\n"
        "[observed]\nsetting_sigma = 0.05\nother_sigma = 0.2\n"
        "[stated]\nleast_share = 0.9\nmost_sigma = 0.25\n"
        f'[classes."convolution native"]\n{entry}[host]\n{entry}[cards.sm_86]\n{entry}'
    )
    assert TimeResiduals.from_toml(text) == residuals(["convolution native", HOST], ["sm_86"])
