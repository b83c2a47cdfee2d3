from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from autofit.search.space import SearchSpace
from autofit_workers.spec.knobs import Knobs


def test_settings_are_the_product_of_the_choices_in_a_stable_order() -> None:
    one = SearchSpace(choices={"conv_algo": ("native", "cudnn"), "precision": ("fp32", "amp-bf16")})
    other = SearchSpace(choices={"precision": ("fp32", "amp-bf16"), "conv_algo": ("native", "cudnn")})
    assert one == other
    assert [(k.conv_algo, k.precision) for k in one.settings] == [
        ("native", "fp32"),
        ("native", "amp-bf16"),
        ("cudnn", "fp32"),
        ("cudnn", "amp-bf16"),
    ]


def test_knobs_that_are_not_searched_keep_their_fixed_value() -> None:
    space = SearchSpace(
        choices={"conv_algo": ("native",)}, fixed=Knobs(precision="amp-bf16", optimizer="adam")
    )
    assert space.settings == (Knobs(conv_algo="native", precision="amp-bf16", optimizer="adam"),)


def test_parameters_and_knobs_convert_both_ways() -> None:
    space = SearchSpace(choices={"conv_algo": ("native", "cudnn"), "optimizer": (None, "adam")})
    for knobs in space.settings:
        assert space.to_knobs(space.to_params(knobs)) == knobs


def test_distributions_are_the_knobs_and_then_the_batch() -> None:
    space = SearchSpace(choices={"conv_algo": ("native", "cudnn")}, min_batch=2, max_batch=64)
    assert list(space.distributions.items()) == [
        ("conv_algo", CategoricalDistribution(("native", "cudnn"))),
        ("batch_size", IntDistribution(2, 64)),
    ]


def test_a_space_is_written_with_lists_for_what_is_searched() -> None:
    space = SearchSpace(choices={"conv_algo": ("native", "cudnn")}, max_batch=64)
    assert space.to_dict() == {
        "conv_algo": ["native", "cudnn"],
        "precision": "fp32",
        "memory_format": "contiguous",
        "optimizer": None,
        "optimizer_impl": "default",
        "set_to_none": True,
        "checkpointing": "none",
        "allocator": "default",
        "grad_accumulation": 1,
        "global_batch": None,
        "compile": False,
        "activation_budget": None,
        "attention": "default",
        "adapter": None,
        "base": None,
        "clip_grad_norm": None,
        "seq_len": None,
        "new_tokens": None,
        "cache": "dynamic",
        "num_beams": 1,
        "optimizer_in_backward": False,
        "kernels": "default",
        "loss": "full",
        "batch_layout": "full",
        "min_batch": 1,
        "max_batch": 64,
    }


@pytest.mark.parametrize(
    ("choices", "batches", "message"),
    [
        ({"conv": ("cudnn",)}, {}, "'conv' is not a knob; the knobs are conv_algo"),
        ({"conv_algo": ()}, {}, "needs values"),
        ({"conv_algo": ("cudnn", "cudnn")}, {}, "each once"),
        ({"conv_algo": ("magic",)}, {}, "conv_algo: 'magic' is not one of cudnn"),
        ({}, {"min_batch": 8, "max_batch": 4}, "between 8 and 4"),
    ],
)
def test_a_space_of_nothing_or_nonsense_is_refused(
    choices: dict[str, tuple[str, ...]], batches: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSpace(choices=choices, **batches)


def test_any_knob_may_be_searched() -> None:
    space = SearchSpace(choices={"set_to_none": (True, False), "memory_format": ("channels_last",)})
    assert space.settings == (
        Knobs(memory_format="channels_last"),
        Knobs(memory_format="channels_last", set_to_none=False),
    )
    for setting in space.settings:
        assert space.to_knobs(space.to_params(setting)) == setting


def test_a_space_of_a_version_with_fewer_knobs_is_read_with_their_defaults() -> None:
    space = SearchSpace(choices={"conv_algo": ("cudnn", "native")}, max_batch=8)
    later = (
        "attention",
        "adapter",
        "base",
        "clip_grad_norm",
        "optimizer_in_backward",
        "kernels",
        "loss",
        "batch_layout",
        "seq_len",
    )
    before = {name: value for name, value in space.to_dict().items() if name not in later}
    assert SearchSpace.from_dict(before) == space
