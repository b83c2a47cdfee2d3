"""Expert parallelism by transformers' own code: each rank has some whole experts, and all share a batch.

The model's own plan names the experts. With transformers' `apply_expert_parallelism` each rank runs its own
experts and masks tokens that are routed to other ranks' experts; an all-reduce sums the outputs of all ranks
(`AllReduceEP` of transformers/distributed/expert_parallel.py). So the sizes of a step do not depend on the
routing, unlike in its other implementation, in which ranks exchange tokens. Modules other than experts are on
every rank, or sharded by `fsdp` in addition.
"""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.apply.parallel.strategy import Placement, Spread, Strategy, taken_out
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError
from autofit_workers.spec.parallel_kinds import EP
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.workload.workload import Workload

_IMPLEMENTATION = "all_reduce"
_OF_EACH_EXPERT = "grouped_gemm"  # style of a parameter with one row for each expert


class ExpertParallelRanks(Strategy):
    """Expert parallelism: each rank has equally many whole experts, by the model's plan in transformers."""

    def require_applicable(self, spec: TrialSpec, _workload: Workload) -> None:
        if spec.knobs.clip_grad_norm is not None:
            raise InapplicableError(
                f"--parallel {self.parallel} cannot be combined with --clip-grad-norm: PyTorch's "
                "clip_grad_norm_ takes no mixture of gradients of experts, which are on a mesh of ep, and of "
                "others: drop one of the two"
            )

    def spreading(self, part: torch.nn.Module, placement: Placement, *, is_stage: bool) -> Spread:
        del is_stage
        remaining = _plan_of(part)
        _require_divided(part, remaining, self.parallel.degree(EP))
        from transformers.distributed.expert_parallel import apply_expert_parallelism

        modules = dict(part.named_modules())
        mesh = placement.mesh[EP]

        def spread(module: torch.nn.Module) -> None:
            plan = taken_out(remaining, modules, module)
            # The ranks that share a batch also share the experts.
            apply_expert_parallelism(part, mesh, mesh, plan, ep_implementation=_IMPLEMENTATION)

        return spread

    def notes(self, _model: torch.nn.Module, _precision: str) -> tuple[str, ...]:
        return (
            f"experts are dealt out over {self.parallel.degree(EP)} ranks that share a batch, by "
            f'apply_expert_parallelism of transformers with ep_implementation="{_IMPLEMENTATION}"',
        )


STRATEGY = ExpertParallelRanks


def _plan_of(model: Any) -> dict[str, str]:
    """Parallel style by module or parameter name, by which transformers divides a model's experts.

    Raises:
        InapplicableError: the model has no plan for experts.
        MissingLibraryError: the installed transformers is too old.
    """
    name = type(model).__name__
    if not hasattr(model, "config") or not hasattr(model, "base_model_prefix"):
        raise InapplicableError(
            f"--parallel ep deals out experts of transformers' models, and {name} is not one: use fsdp:N"
        )
    if not hasattr(model, "_expand_parallel_plan"):
        raise MissingLibraryError(
            "ep:N is by transformers' own code, which the release that is installed where trials run lacks: "
            "pip install --upgrade transformers"
        )
    if not model.ep_plan:
        raise InapplicableError(
            f"--parallel ep: {name} has no experts of which transformers has a plan: use fsdp:N, or tp:N"
        )
    plan: dict[str, str] = model._expand_parallel_plan(dict(model.ep_plan))  # noqa: SLF001 - how it loads
    return plan


def _require_divided(model: torch.nn.Module, plan: dict[str, str], degree: int) -> None:
    """Raises `InapplicableError` if `degree` ranks cannot all have the same number of experts.

    Args:
        model: the model.
        plan: parallel style by parameter name; see `_plan_of`.
        degree: number of ranks that share the experts.
    """
    numbers = {
        len(parameter) for name, parameter in model.named_parameters() if plan.get(name) == _OF_EACH_EXPERT
    }
    for number in sorted(numbers):
        if number % degree:
            fine = ", ".join(f"ep:{each}" for each in range(2, number + 1) if number % each == 0)
            why = (
                f"has more ranks than the model has experts, {number}"
                if degree > number
                else f"does not divide the model's {number} experts"
            )
            raise InapplicableError(f"--parallel ep:{degree} {why}: use {fine or 'fsdp:N'}")
