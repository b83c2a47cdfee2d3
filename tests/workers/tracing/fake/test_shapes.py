"""Shapes that are remembered, and fake tensors that are made without their class's constructor."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.shapes import FakeTensors, ShapeCache

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture
def mode():
    return FakeTensorMode()


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fake_tensor_is_what_its_class_would_have_made(mode, device):
    make = FakeTensors(mode, device)
    expected = FakeTensor(mode, torch.empty_strided((3, 4), (1, 3), device="meta"), device)
    made = make.strided((3, 4), (1, 3), torch.float32)
    assert type(made) is FakeTensor
    assert vars(made) == vars(expected)
    for attribute in ("shape", "dtype", "device", "requires_grad", "layout", "is_leaf"):
        assert getattr(made, attribute) == getattr(expected, attribute)
    assert made.stride() == expected.stride()
    assert made.untyped_storage().nbytes() == expected.untyped_storage().nbytes() == 48
    assert torch._C._dispatch_keys(made) == torch._C._dispatch_keys(expected)


def test_what_one_fake_tensor_is_told_no_other_knows(mode):
    make = FakeTensors(mode, CPU)
    first, second = (make.strided((2,), (1,), torch.float32) for _ in range(2))
    first.item_memo = 3.0
    first.note = "of the first"
    assert second.item_memo is None
    assert not hasattr(second, "note")


@pytest.fixture
def cache(mode, monkeypatch):
    monkeypatch.setattr(ShapeCache, "_known", {})
    return ShapeCache(mode, CPU)


def run(cache: ShapeCache, func: torch._ops.OpOverload, *args: object, **kwargs: object) -> torch.Tensor:
    return cache.run(func, args, kwargs)


def test_a_copy_is_remembered_by_its_shape_and_a_view_is_never_made_a_copy(mode, cache):
    tensor = FakeTensors(mode, CPU).strided((4, 6), (6, 1), torch.float32)
    for _ in range(2):
        copied = run(cache, aten._to_copy.default, tensor, dtype=torch.bfloat16)
        assert (copied.dtype, copied.shape) == (torch.bfloat16, (4, 6))
        assert copied.untyped_storage()._cdata != tensor.untyped_storage()._cdata
        for view in (run(cache, aten._unsafe_view.default, tensor, [24]), run(cache, aten.t.default, tensor)):
            assert view.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    assert len(cache._known) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_grouped_product_is_of_its_factors_type(mode, dtype):
    make = FakeTensors(mode, GPU)
    rows, weights = make.strided((96, 32), (32, 1), dtype), make.strided((4, 32, 64), (2048, 64, 1), dtype)
    ends = make.strided((4,), (1,), torch.int32)
    product = ShapeCache(mode, GPU).run(aten._grouped_mm.default, (rows, weights, ends), {})
    assert (product.shape, product.dtype, product.device) == ((96, 64), dtype, GPU)


@pytest.mark.parametrize(
    ("func", "shapes"),
    [(aten.mm, [(2, 2)] * 2), (aten.mv, [(2, 2), (2,)]), (aten.addmm, [(2,), (2, 2), (2, 2)])],
)
def test_a_product_of_several_types_is_refused_as_on_a_gpu(mode, func, shapes):
    cache, make = ShapeCache(mode, GPU), FakeTensors(mode, GPU)
    for odd in range(len(shapes)):
        types = [torch.bfloat16 if place == odd else torch.float32 for place in range(len(shapes))]
        tensors = [
            make.strided(shape, (2, 1)[-len(shape) :], dtype)
            for shape, dtype in zip(shapes, types, strict=True)
        ]
        with pytest.raises(RuntimeError, match=r"one dtype, and was given .*float.* and .*float"):
            cache.run(func.default, tuple(tensors), {})
