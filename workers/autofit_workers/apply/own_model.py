"""Applies convolution algorithms to a user's own model, in the user's process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from autofit_workers.conv.intercept import Rewriting
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import ConvAlgorithm, ConvPolicy, Rewrite
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.errors import InapplicableError, UnsupportedError


@contextmanager
def algorithm_in_use(
    model: torch.nn.Module,
    algorithm: ConvAlgorithm,
    *,
    plan: tuple[tuple[str, str], ...] | None = None,
) -> Iterator[Mapping[str, str]]:
    """Context manager in which a model's convolutions are computed by `algorithm`.

    An algorithm is a policy, which sets flags of cuDNN or oneDNN for the whole process, or a rewrite, which
    replaces this model's convolutions by other PyTorch operators. Yields a mapping from layer names to the
    reasons why layers still use cuDNN or oneDNN; it fills as the layers run.

    Args:
        model: the model, on its device.
        algorithm: the policy or rewrite.
        plan: pairs of a layer and its algorithm, in place of one algorithm for all.

    Raises:
        UnsupportedError: the algorithm does not apply to the model's device.
        InapplicableError: the algorithm computes none of the model's convolutions; raised at the latest by
            the model's first forward pass.
    """
    kind = _kind_of(model)
    if plan is not None:
        with _plan_in_use(model, plan) as left:
            yield left
        return
    if kind not in algorithm.device_kinds:
        raise UnsupportedError(
            f"{algorithm.name} does not apply to {kind}, where the model is: "
            f"choose from {', '.join(conv.applicable(kind))}"
        )
    if isinstance(algorithm, ConvPolicy):
        with _policy(algorithm, kind):
            yield {}
        return
    assert isinstance(algorithm, Rewrite)
    with rewrites_in_use(model, lambda _layer: algorithm, algorithm.applies_to_none) as left:
        yield left


@contextmanager
def _plan_in_use(model: torch.nn.Module, plan: tuple[tuple[str, str], ...]) -> Iterator[Mapping[str, str]]:
    """Context manager in which each layer is computed by its algorithm in `plan`; see `algorithm_in_use`."""
    layers = dict(model.named_modules())
    missing = [layer for layer, _ in plan if layer not in layers]
    if missing:
        raise UnsupportedError(
            f"the plan is of another model: this one has no layer {missing[0]!r}; make a plan of this model"
        )
    found = {layer: conv.find(name) for layer, name in plan}
    rewrites = {layer: each for layer, each in found.items() if isinstance(each, Rewrite)}
    if not rewrites:  # the backend computes all layers
        yield {}
        return

    def none_of_them(reasons: Iterable[str]) -> str:
        why = "; ".join(dict.fromkeys(reasons)) or "none of them ran"
        return f"the plan rewrites no convolution of the model ({why}): make one for this model"

    with rewrites_in_use(model, rewrites.get, none_of_them) as left:
        yield left


@contextmanager
def rewrites_in_use(
    model: torch.nn.Module,
    choose: Callable[[str], Rewrite | None],
    applies_to_none: Callable[[Iterable[str]], str],
) -> Iterator[Mapping[str, str]]:
    """Context manager that replaces convolutions of a model by other PyTorch operators, layer by layer.

    Yields a mapping from layer names to the reasons why layers were not replaced, as `algorithm_in_use` does.

    Args:
        model: the model.
        choose: returns the rewrite for a layer's name; None to leave the layer to cuDNN or oneDNN.
        applies_to_none: returns the message for a model in which no layer was replaced, from the reasons.

    Raises:
        InapplicableError: the model's forward pass replaced no convolution.
    """
    mode = Rewriting(choose, only_followed=True)
    with ExitStack() as stack:

        def require_some(*_forward: object) -> None:
            if not mode.rewritten:
                raise InapplicableError(applies_to_none(mode.left.values()))

        for hook in (*mode.follow(model), model.register_forward_hook(require_some)):
            stack.callback(hook.remove)
        with mode:
            yield mode.left
        if _met_some(mode):
            require_some()


def _kind_of(model: torch.nn.Module) -> str:
    """Kind of device of a model, `cuda` or `cpu`, by its first parameter or buffer."""
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedError(f"give the nn.Module that is trained; got {type(model).__name__}")
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    return GPU_KIND if first is not None and first.is_cuda else "cpu"


def _met_some(mode: Rewriting) -> bool:
    """Whether any convolution ran under `mode`, rewritten or not."""
    return bool(mode.rewritten or mode.left)


@contextmanager
def _policy(policy: ConvPolicy, kind: str) -> Iterator[None]:
    """Context manager that sets the flags of cuDNN or oneDNN that a convolution policy names.

    Args:
        policy: the policy, such as `cudnn-benchmark`.
        kind: `cuda` for cuDNN, `cpu` for oneDNN.
    """
    if kind == "cpu":
        with _attributes(torch.backends.mkldnn, enabled=policy.enabled):
            yield
        return
    for variable, value in policy.variables:
        _require_variable(policy.name, variable, value)
    with _attributes(
        torch.backends.cudnn,
        enabled=policy.enabled,
        benchmark=policy.benchmark,
        deterministic=policy.deterministic,
    ):
        yield


def _require_variable(name: str, variable: str, value: str) -> None:
    if os.environ.get(variable) != value:
        raise UnsupportedError(
            f"{name} is set before its library is loaded: start Python with {variable}={value} in the "
            "environment"
        )


@contextmanager
def _attributes(flags: Any, **values: bool) -> Iterator[None]:
    before = {name: getattr(flags, name) for name in values}
    for name, value in values.items():
        setattr(flags, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(flags, name, value)
