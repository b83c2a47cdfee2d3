"""What a whole search tells beside its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

import autofit
from autofit.errors import WorkloadFailedError
from autofit.events import Event, RecommendationMade
from tests.autofit.serve.searches import Reading

TINY = f"{Path(__file__).parents[1] / 'tiny_workloads.py'}:small"


def test_what_a_search_recommends_is_told_and_kept() -> None:
    told: list[Event] = []
    result = autofit.tune(TINY, gpu_mem="1.5G", max_batch=64, on_event=told.append)
    assert result.recommended is not None
    (made,) = (event for event in told if isinstance(event, RecommendationMade))
    assert (made.knobs, made.batch_size) == (result.recommended.knobs, result.recommended.batch_size)
    assert made.study == result.study
    reading = Reading(None)
    shown = {name: value for name, value in reading.read().items() if "recommended" in name}
    reading.close()
    assert list(shown.values()) == [result.recommended.batch_size]
    assert all(name.endswith(result.recommended.knobs.conv_algo) for name in shown)


def test_where_nothing_fits_nothing_is_recommended() -> None:
    told: list[Event] = []
    result = autofit.tune(TINY, gpu_mem="665M", conv_algo="cudnn", max_batch=64, on_event=told.append)
    (made,) = (event for event in told if isinstance(event, RecommendationMade))
    assert result.best is None
    assert (made.knobs, made.batch_size) == (None, None)


def test_on_a_card_of_amd_s_a_step_with_convolutions_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(WorkloadFailedError, match="--conv-algo native"):
        autofit.tune(TINY, gpu="mi300x", probe="predict", max_batch=64)
    native = autofit.tune(TINY, gpu="mi300x", probe="predict", max_batch=64, conv_algo="native")
    assert native.architectures == ("gfx942",)
    assert native.best is not None
    assert native.best.batch_size == 64
