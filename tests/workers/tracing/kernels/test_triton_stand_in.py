"""What stands in for Triton keeps the meaning of what is called on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autofit_workers.tracing.kernels.stand_ins import triton_language as tl
from autofit_workers.tracing.kernels.stand_ins import triton_runtime as triton


@triton.jit
def _kernel(x_ptr: Any, num: int, BLOCK: tl.constexpr) -> None:  # noqa: N803 - as kernels have it
    raise AssertionError("it is never run")


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_sizes_are_rounded_up_to_powers_of_two(number: int, expected: int) -> None:
    assert triton.next_power_of_2(number) == expected


def test_a_quotient_is_rounded_up() -> None:
    assert (triton.cdiv(9, 4), triton.cdiv(8, 4)) == (3, 2)


def test_a_launch_needs_a_grid_and_returns_a_compiled_kernel() -> None:
    with pytest.raises(RuntimeError, match="launched with a grid"):
        _kernel(None, 4, 4)
    compiled = _kernel[lambda meta: (meta["BLOCK"],)](None, 4, BLOCK=4, num_warps=8)
    assert compiled.n_regs > 0 and compiled.metadata.shared == 0


def test_heuristics_are_told_what_was_given_and_what_was_worked_out_before() -> None:
    told: list[dict[str, Any]] = []
    kernel = triton.heuristics(
        {"BLOCK": lambda given: given["num"] * 2, "EVEN": lambda given: told.append(given) or True}
    )(_kernel)
    kernel[(1,)](None, 4)
    (given,) = told
    assert (given["num"], given["BLOCK"]) == (4, 8)


def test_one_setting_is_not_timed_and_of_several_the_best_by_a_model_are() -> None:
    (only,) = configs = [triton.Config({"BLOCK": 8}, num_warps=2)]
    kernel = triton.autotune(configs, key=["num"])(_kernel)
    kernel[(1,)](None, 4)
    assert kernel.best_config is only
    configs = [triton.Config({"BLOCK": block}) for block in (32, 8, 16)]
    pruning = {"perf_model": lambda BLOCK, **_rest: BLOCK, "top_k": 2}  # noqa: N803
    tuned = triton.autotune(configs, key=["num"], prune_configs_by=pruning)(_kernel)
    assert [config.kwargs["BLOCK"] for config in tuned.prune_configs({})] == [8, 16]


def test_a_descriptor_of_tiles_has_the_fields_that_hooks_of_tuning_set() -> None:
    tensor = torch.empty(6, 4)
    tiles = triton.TensorDescriptor.from_tensor(tensor, [2, 2], padding="nan")
    assert tiles.base is tensor
    assert (tiles.shape, tiles.strides, tiles.padding) == ([6, 4], [4, 1], "nan")
    tiles.block_shape = [tiles.block_shape[0] * 2, 4]
    assert tiles.block_shape == [4, 4]


def test_constants_can_be_reckoned_with_and_any_name_of_the_language_is_there() -> None:
    eight = tl.constexpr(8)
    assert (eight * 2).value == 16 and (2 - eight).value == -6 and range(eight)[-1] == 7
    assert tl.float32 == tl.float32 != tl.bfloat16
    assert (tl.bfloat16.primitive_bitwidth, tl.uint8.primitive_bitwidth) == (16, 8)
    assert callable(tl.extra.cuda.libdevice.rsqrt)
    with pytest.raises(AttributeError):
        tl._private  # noqa: B018
