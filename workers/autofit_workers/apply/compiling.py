"""Applies `torch.compile` to a trial's model, checks its knobs, and counts the compiled graphs."""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.pytorch.compiling import compile_counters, set_activation_budget
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.compile import mode_of


def require_compilable(knobs: Knobs) -> None:
    """Checks that a model to be compiled has no knob set that changes single operators.

    A compiled model runs kernels of its own in place of operators.

    Raises:
        InapplicableError: `knobs` compile the model and set such a knob, or set one that only a compiled
            model has.
    """
    if not knobs.compile:
        if knobs.activation_budget is not None:
            raise InapplicableError(
                "activation_budget only acts on a model that is compiled: add compile, or leave it out"
            )
        return
    if not isinstance(conv.find(knobs.conv_algo), conv.ConvPolicy):
        raise InapplicableError(
            f"conv_algo {knobs.conv_algo} rewrites operators, and a compiled model has kernels of its own: "
            "leave either out"
        )
    if knobs.checkpointing not in ("none", "blocks"):
        raise InapplicableError(
            f"checkpointing {knobs.checkpointing} looks on as operators run, and a compiled model has "
            "kernels of its own: choose none or blocks, or leave compile out"
        )


def compiled(model: torch.nn.Module, knobs: Knobs) -> torch.nn.Module:
    """Model wrapped by `torch.compile`, which compiles its kernels at the first batch.

    `Module.compile` is not used: it has no effect on a model whose `forward` is PyTorch's own, such as
    `nn.Sequential`.
    """
    set_activation_budget(1.0 if knobs.activation_budget is None else knobs.activation_budget)
    untyped: Any = torch.compile
    made: torch.nn.Module = untyped(model, mode=mode_of(knobs.compile))
    return made


def what_was_compiled() -> str:
    """Numbers of compiled graphs and graph breaks in this process: `2 graphs, 1 graph break`.

    Raises:
        InapplicableError: no graph was compiled, so the step ran uncompiled.
    """
    counters = compile_counters()
    num_graphs = counters["stats"]["unique_graphs"]
    if not num_graphs:
        raise InapplicableError(
            "torch.compile found nothing to compile in the step: let it call the model, or leave compile out"
        )
    num_breaks = sum(counters["graph_break"].values())
    graphs = f"{num_graphs} graph{'s'[: num_graphs != 1]}"
    return f"{graphs}, {num_breaks} graph break{'s'[: num_breaks != 1]}" if num_breaks else graphs
