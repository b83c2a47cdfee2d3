"""What a mixed plan costs against its workspace: `python tests/bench/conv_plans.py`.

For each model, on a card, the predicted time of all convolutions of a training step under a limit on
any workspace, over that of cuDNN's own choice; beside it the best single algorithm within the same limit.
Times are of `autofit.predict.convolutions.costs`: of cuDNN's own choice as in a predicted step, of others a
roofline's, which orders them; nothing was run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autofit.hardware.card import card_named
from autofit.settings.workloads import refer

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.predict import plan_sources
from autofit.predict.convolutions.costs import FALLBACK_SLOWDOWN, ConvCosts
from autofit.predict.convolutions.plan import ConvPlanner
from autofit.predict.predictor import Predictor
from autofit.predict.times.step_times import Timer
from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.conv_algorithms.mixed import CANDIDATES
from autofit_workers.spec.knobs import Knobs
from autofit_workers.trials import door

MIB = 2**20
LIMITS_MIB = (0, 1, 4, 16, 64, 128, 256, 512, 1024, 2048)
SINGLE = ("cudnn", *CANDIDATES)


def step(model: str, gpu: str, batch_size: int) -> tuple[StepOnCard, ConvCosts]:
    """A model's training step on a card, and what its convolutions cost there."""
    card = card_named(gpu)
    plan_sources.prepare(card.architecture, None)
    trace = Predictor(refer(model), door.run).trace(Knobs(), batch_size)
    conditions = Conditions(
        architecture=card.architecture, plans=(plan_sources.plan_source(card.architecture),)
    )
    on_card = PeakCurve.through([trace]).on_card(batch_size, conditions)
    return on_card, ConvCosts(Timer().costs(card, Knobs()))


def cost_alone(on_card: StepOnCard, costs: ConvCosts, name: str, limit_bytes: int) -> float | None:
    """Cost of one algorithm for all layers, over that of cuDNN's own choice; None beyond the limit.

    A layer that it does not apply to is cuDNN's. Workspaces that are not certain are at the high end.
    """
    total = by_default = 0.0
    modules = on_card.step.convolution_modules()
    for layer, options in on_card.convolution_options(tuple(dict.fromkeys(("cudnn", name)))).items():
        chosen, spans = options[-1].algorithm, options[-1].spans
        cost = len(modules[layer]) * sum(costs.seconds(call, chosen) for call in spans)
        if any(span.high_bytes > limit_bytes for span in spans.values()):
            cost *= FALLBACK_SLOWDOWN
            if any(min((span.low_bytes, *span.choices_bytes)) > limit_bytes for span in spans.values()):
                return None
        total += cost
        by_default += len(modules[layer]) * sum(costs.seconds(call, "cudnn") for call in options[0].spans)
    return total / by_default


def print_curve(model: str, gpu: str, batch_size: int) -> bool:
    """Prints a model's table and returns whether a mixed plan never loses."""
    on_card, costs = step(model, gpu, batch_size)
    planner = ConvPlanner(on_card, costs)
    print(f"\n{model}, batch {batch_size}, {gpu}\n")
    print("| workspace up to, MiB | mixed | its largest, MiB | algorithms | best single | which |")
    print("|---|---|---|---|---|---|")
    never_loses = True
    for limit_mib in LIMITS_MIB:
        limit_bytes = limit_mib * MIB
        mixed = planner.within(lambda _call, limit_bytes=limit_bytes: limit_bytes)
        alone = {name: cost_alone(on_card, costs, name, limit_bytes) for name in SINGLE}
        largest = max(choice.workspace_bytes for choice in mixed.layers) / MIB
        names = ", ".join(dict.fromkeys(choice.algorithm for choice in mixed.layers))
        best, told = min(
            ((cost, name) for name, cost in alone.items() if cost is not None), default=(None, "none")
        )
        never_loses = never_loses and (best is None or mixed.relative_cost <= best + 1e-9)
        shown = "–" if best is None else f"{best:.3f}"
        print(f"| {limit_mib} | {mixed.relative_cost:.3f} | {largest:.1f} | {names} | {shown} | {told} |")
    return never_loses


def main() -> int:
    """Prints a curve for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="vgg16,resnet50")
    parser.add_argument("--gpu", default="a100-40g")
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    results = [print_curve(model, options.gpu, options.batch_size) for model in options.models.split(",")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
