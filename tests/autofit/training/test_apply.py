"""A convolution algorithm for a model of the user's own, and everything as before afterwards."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import autofit
from autofit.errors import StorageError, UsageError
from autofit.predict.convolutions.plan import ConvPlan, LayerChoice
from autofit_workers.conv.intercept import Rewriting

IMAGES = torch.randn(2, 3, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Convolutions of modules and of a function that the model itself calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.conv2d(self.first(images).relu(), self.weight))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


class BackendCalls(TorchDispatchMode):
    """Counts the convolutions that the backend is asked for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["im2col", "im2col-chunked:7", "fft", "chunked:1"])
def test_a_training_step_is_the_same_and_backward_may_come_after_the_block(net: Net, name: str) -> None:
    plain = copy.deepcopy(net)
    plain(IMAGES).square().sum().backward()
    with autofit.apply_conv_algo(net, name) as left:
        loss = net(IMAGES).square().sum()
    loss.backward()
    assert left == {}
    for mine, theirs in zip(gradients(net), gradients(plain), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)


def test_only_this_model_is_rewritten_and_no_hook_stays(net: Net) -> None:
    other = copy.deepcopy(net)
    with BackendCalls() as calls:
        with autofit.apply_conv_algo(net, "im2col"):
            net(IMAGES)
            assert calls.count == 0
            other(IMAGES)
            torch.conv2d(IMAGES, torch.ones(1, 3, 2, 2, dtype=torch.float64))
        assert calls.count == 4
        net(IMAGES)
        assert calls.count == 7
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert not any(isinstance(mode, Rewriting) for mode in torch.overrides._get_current_function_mode_stack())


def test_layers_that_a_rewrite_leaves_to_the_backend_are_told(net: Net) -> None:
    with autofit.apply_conv_algo(net, "matmul-1x1") as left:
        net(IMAGES)
    assert dict(left) == dict.fromkeys(("first", ""), "its filter is 3×3, not one point")


def test_one_that_applies_to_no_layer_says_so_in_the_first_forward_pass(net: Net) -> None:
    reached = False
    with (
        pytest.raises(UsageError, match=r"matmul-1x1 applies to no .* \(its filter is 3×3, not one point\)"),
        autofit.apply_conv_algo(net.first, "matmul-1x1"),
    ):
        net.first(IMAGES)
        reached = True
    assert not reached
    linear = nn.Linear(2, 2)
    with (
        pytest.raises(UsageError, match=r"fft applies to no .* \(it has none\)"),
        autofit.apply_conv_algo(linear, "fft"),
    ):
        linear(torch.ones(1, 2))


def test_a_policy_moves_the_switches_of_the_model_s_backend_alone(net: Net) -> None:
    cudnn = torch.backends.cudnn
    before = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    with pytest.raises(KeyError), autofit.apply_conv_algo(net, "native"):
        assert not torch.backends.mkldnn.enabled
        assert before == (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
        raise KeyError
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("im2cool", "Did you mean im2col"),
        ("chunked:none", "chunked:none"),
        ("all", "name one of them"),
        ("cudnn-benchmark", "does not apply to cpu, where the model is: choose from onednn, native"),
    ],
)
def test_a_bad_name_is_a_usage_error_before_anything_runs(net: Net, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message), autofit.apply_conv_algo(net, name):
        pytest.fail("the block ran")


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UsageError, match="got builtin"), autofit.apply_conv_algo(torch.conv2d, "fft"):
        pytest.fail("the block ran")


def test_a_plan_gives_each_layer_its_own_and_is_read_from_its_file(net: Net, tmp_path: Path) -> None:
    names = [name for name, module in net.named_modules() if isinstance(module, torch.nn.Conv2d)]
    choices = tuple(
        LayerChoice(layer=name, algorithm=algorithm, workspace_bytes=0, cost=0.5)
        for name, algorithm in zip(names, ("im2col", "onednn"), strict=False)
    )
    plan = ConvPlan(batch_size=2, layers=choices, peak_reserved_bytes=1, relative_cost=1.0)
    (tmp_path / "plan.json").write_text(plan.to_json())
    expected = net(IMAGES)
    for given in (plan, tmp_path / "plan.json", str(tmp_path / "plan.json")):
        with autofit.apply_conv_algo(net, "mixed", plan=given):
            got = net(IMAGES)
        assert torch.allclose(got, expected, rtol=0, atol=1e-6)


def test_a_plan_of_another_model_or_none_is_refused(net: Net, tmp_path: Path) -> None:
    layer = LayerChoice(layer="elsewhere", algorithm="fft", workspace_bytes=0, cost=1.0)
    plan = ConvPlan(batch_size=2, layers=(layer,), peak_reserved_bytes=1, relative_cost=1.0)
    (tmp_path / "other.json").write_text('{"schema": "something else"}')
    refused = [
        ("mixed", plan, UsageError, "of another model: this one has no layer 'elsewhere'"),
        ("mixed", None, UsageError, "mixed needs a plan"),
        ("fft", plan, UsageError, "plan= is for mixed, not for fft"),
        ("mixed", tmp_path / "other.json", UsageError, "is not a convolution plan"),
        ("mixed", tmp_path / "missing.json", StorageError, "cannot read the plan"),
    ]
    for name, given, kind, said in refused:
        with pytest.raises(kind, match=said), autofit.apply_conv_algo(net, name, plan=given):
            pass
