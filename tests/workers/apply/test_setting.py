"""Knobs are applied for the length of a trial and leave no flag changed."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import NamedTuple

import pytest
import torch

from autofit_workers.apply import setting
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES
from autofit_workers.spec.knobs.precision import PRECISIONS


def flags():
    cudnn = torch.backends.cudnn
    return {
        "enabled": cudnn.enabled,
        "benchmark": cudnn.benchmark,
        "deterministic": cudnn.deterministic,
        "convolutions in TF32": cudnn.allow_tf32,
        "matrix products in TF32": torch.backends.cuda.matmul.allow_tf32,
        "matmul precision": torch.get_float32_matmul_precision(),
    }


@pytest.mark.parametrize(
    ("conv_algo", "enabled", "benchmark", "deterministic"),
    [
        ("cudnn", True, False, False),
        ("cudnn-benchmark", True, True, False),
        ("cudnn-deterministic", True, False, True),
        ("native", False, False, False),
    ],
)
def test_a_conv_algo_sets_its_flags_and_restores_them(conv_algo, enabled, benchmark, deterministic):
    before = flags()
    with setting.applied(Knobs(conv_algo=conv_algo), "cuda"):
        during = flags()
    assert (during["enabled"], during["benchmark"], during["deterministic"]) == (
        enabled,
        benchmark,
        deterministic,
    )
    assert flags() == before


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("conv_algo", CUDA_POLICIES)
def test_tf32_is_in_convolutions_only_unless_the_precision_is_about_it(conv_algo, precision):
    convolutions, products = {"ieee-fp32": (False, False), "tf32": (True, True)}.get(precision, (True, False))
    before = flags()
    with setting.applied(Knobs(conv_algo=conv_algo, precision=precision), "cuda"):
        assert flags()["convolutions in TF32"] is convolutions
        assert flags()["matrix products in TF32"] is products
    assert flags() == before


def test_flags_that_the_user_had_set_come_back_after_an_error():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    before = flags()
    try:
        with pytest.raises(KeyError), setting.applied(Knobs(), "cuda"):
            assert flags()["matmul precision"] == "highest"
            assert flags()["benchmark"] is False
            raise KeyError
        assert flags() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("conv_algo", ["cudnn-benchmark", "cudnn-deterministic", "cudnn-capped:64"])
def test_what_does_not_apply_to_the_cpu_is_refused_with_what_does(conv_algo):
    with (
        pytest.raises(UnsupportedError, match="use onednn, native"),
        setting.applied(Knobs(conv_algo=conv_algo), "cpu"),
    ):
        pass


def test_native_on_the_cpu_is_pytorch_without_onednn():
    with setting.applied(Knobs(conv_algo="native"), "cpu"):
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("name", CUDA_POLICIES)
def test_the_lines_to_paste_do_what_the_knob_does(name):
    policy = conv.find(name)
    before = flags()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False):
        exec("\n".join(policy.lines_on("cuda")), {"torch": torch})
        pasted = flags()
    with setting.applied(Knobs(conv_algo=name), "cuda"):
        assert flags() == pasted
    assert flags() == before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_amp_is_autocast_in_its_type_and_the_others_leave_products_alone(precision):
    expected = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(precision, torch.float32)
    with setting.autocast_factory(Knobs(precision=precision), "cpu")():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is expected


@pytest.mark.parametrize("precision", PRECISIONS)
def test_float16_alone_needs_a_gradient_scaler(precision):
    assert setting.make_scaler(Knobs(precision=precision), "cpu").is_enabled() == (precision == "amp-fp16")


def model_with_every_kind_of_tensor():
    model = torch.nn.Sequential(
        torch.nn.Conv1d(2, 3, 3), torch.nn.Conv2d(3, 4, 3), torch.nn.Conv3d(4, 5, 3), torch.nn.BatchNorm2d(3)
    )
    model.register_buffer("filters", torch.ones(2, 3, 4, 5))
    return model


def test_bf16_converts_every_floating_point_parameter_and_buffer():
    model = setting.converted_model(model_with_every_kind_of_tensor(), Knobs(precision="bf16"))
    dtypes = {name: value.dtype for name, value in model.state_dict().items()}
    assert dtypes.pop("3.num_batches_tracked") is torch.int64
    assert set(dtypes.values()) == {torch.bfloat16}


def test_channels_last_reorders_images_and_volumes_and_keeps_their_values():
    model = model_with_every_kind_of_tensor()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    converted = setting.converted_model(model, Knobs(memory_format="channels_last"))
    for name, value in converted.state_dict().items():
        assert torch.equal(value, before[name])
    assert converted[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert converted[2].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert converted.filters.is_contiguous(memory_format=torch.channels_last)
    assert converted[0].weight.is_contiguous()


def test_parameters_without_a_shape_yet_are_left_for_later():
    model = torch.nn.LazyConv2d(4, 3)
    assert setting.converted_model(model, Knobs(memory_format="channels_last")) is model


def test_a_model_is_left_alone_without_a_reason():
    model = model_with_every_kind_of_tensor()
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    assert setting.converted_model(model, Knobs(precision="amp-fp16")) is model
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    label: torch.Tensor
    name: str


class Named(NamedTuple):
    image: torch.Tensor


def test_inputs_are_converted_wherever_a_batch_holds_them():
    image, label = torch.ones(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)
    batch = {
        "pair": (image, label),
        "list": [image],
        "named": Named(image),
        "sample": Sample(image, label, "a"),
        "user": UserDict(image=image),
        "count": 3,
    }
    made = setting.converted_batch(batch, Knobs(precision="bf16", memory_format="channels_last"))
    images = [
        made["pair"][0],
        made["list"][0],
        made["named"].image,
        made["sample"].image,
        made["user"]["image"],
    ]
    assert {each.dtype for each in images} == {torch.bfloat16}
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in images)
    assert made["pair"][1] is label
    assert (made["sample"].name, made["count"], type(made["named"])) == ("a", 3, Named)
    assert batch["sample"].image is image
    assert batch["user"]["image"] is image


def test_a_batch_that_refers_to_itself_is_converted_once():
    class Linked:
        pass

    batch = Linked()
    batch.image, batch.itself = torch.ones(2, 3), batch
    made = setting.converted_batch(batch, Knobs(precision="bf16"))
    assert made is not batch
    assert made.itself is made
    assert made.image.dtype is torch.bfloat16


def test_a_batch_is_left_alone_without_a_reason():
    batch = [torch.ones(2, 3, 4, 4)]
    assert setting.converted_batch(batch, Knobs(precision="amp-fp16")) is batch
