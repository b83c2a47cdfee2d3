"""Memory of `flex_attention`: one kernel if it is compiled, many operators if it is eager.

    torch.compile(flex_attention)(…)         output and log-sum-exp of each row; while it runs also the
                                             maximum of each row. In backward the gradients, and row sums of
                                             out · grad_out
    torch.compile(create_block_mask)(…)      the block mask's tensors; the mask of all positions is never made
    flex_attention(…)                        eager operators, with the scores of all positions

Source, in PyTorch 2.13: torch/_inductor/kernel/flex/flex_attention.py (`flex_attention`,
`flex_attention_backward`); shapes of outputs come from PyTorch's own fake functions. `flex_attention` counts
as compiled if the program compiles anything, such as a model, or calls a function that was compiled by a
module imported earlier. Not predicted: memory of a split of few queries over many keys (flex_decoding.py),
and scratch memory of the backend FLASH.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.pytorch.dispatch import DispatchKey
from autofit_workers.pytorch.flex_attention import flex_attention, flex_attention_backward
from autofit_workers.pytorch.operators import HigherOrderOperator
from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.running import MODES, RunningDevice

_MODULE = "torch.nn.attention.flex_attention"
_compiled: set[str] = set()  # names of functions that the current program compiled


@functools.cache
def install() -> None:
    """Makes PyTorch leave out the graph of `flex_attention`'s score gradients once anything was compiled."""
    module: Any = sys.modules[flex_attention.__class__.__module__]
    traced = module.create_fw_bw_graph

    def graphs(score_mod: Any, *rest: Any) -> Any:
        return (score_mod, None) if _compiled else traced(score_mod, *rest)

    module.create_fw_bw_graph = graphs


def begin_program() -> None:
    """Forgets which functions an earlier script or workload in this process compiled."""
    _compiled.clear()


def is_followed_as_compiled(function: Any) -> bool:
    """Whether `torch.compile(function)` changes a prediction: for `flex_attention` and `create_block_mask`.

    Other functions are predicted as if they were not compiled.
    """
    return _named(function) in {(_MODULE, "flex_attention"), (_MODULE, "create_block_mask")}


def compiled(function: Any) -> Any:
    """Replacement for `torch.compile(function)`: `function` itself, or a wrapper that predicts its memory."""
    module, name = _named(function)
    if module.startswith("torch.") and "<locals>" in name:
        return function  # PyTorch itself compiles eager higher-order operators
    _compiled.add(name)
    if (module, name) == (_MODULE, "flex_attention"):

        @functools.wraps(function)
        def attend(*args: Any, **kwargs: Any) -> Any:
            _compiled.add(name)
            return function(*args, **kwargs)

        return attend
    if (module, name) != (_MODULE, "create_block_mask"):
        return function

    @functools.wraps(function)
    def create(*args: Any, **kwargs: Any) -> Any:
        _compiled.add(name)
        if not MODES:
            return function(*args, **kwargs)
        mode = MODES[-1]
        with mode.unobserved():
            made = function(*args, **kwargs)
        for leaf in tree_leaves(made.as_tuple()):
            if isinstance(leaf, torch.Tensor):
                mode.observer(torch.ops.aten.empty_strided.default, (leaf.size(), leaf.stride()), {}, leaf)
        return made

    return create


def _and_state(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.cuda.get_rng_state(), operator(*args, **kwargs)


def _with_state(_state: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


# Operators by which compiled code computes random numbers again; a state of the generator lies on the host.
_SAVING_STATE: dict[str, Callable[..., Any]] = {
    "run_and_save_rng_state": _and_state,
    "run_with_rng_state": _with_state,
}


def _named(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", "")


def run(mode: RunningDevice, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a higher-order operator on the fake device, as one kernel if compiled, else eagerly.

    Raises:
        UnsupportedError: PyTorch itself has no eager code for the operator.
    """
    if func.name() in _SAVING_STATE:
        with mode:
            return _SAVING_STATE[func.name()](*args, **kwargs)
    if not _compiled or func not in (flex_attention, flex_attention_backward):
        eager = func.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        if eager is None:
            raise UnsupportedError(
                f"PyTorch's operator {func.name()} is only there when it is compiled, which a prediction "
                "cannot follow: measure instead"
            )
        with mode:
            return eager(*args, **kwargs)
    with mode.fake_mode:
        result: Any = func(*args, **kwargs)
        if func is flex_attention:
            *made, largest = result
            beside = [torch.empty_like(largest)]  # row maxima, which compiled backward does not need
        else:
            query, grad_of_sums = args[0], args[6]
            num_sums = 1 if grad_of_sums is None else 2
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            beside = [query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(num_sums)]
    operator: Any = func
    mode.observer(operator, args, kwargs, [*beside, *made])
    return result
