"""Makes trainers of libraries finish as they do by themselves once a script's loops are ended.

Trainers evaluate and save after a number of steps or epochs that they count themselves. If it is configured
to, transformers' Trainer does both at its last step; Lightning's validates and saves when it is told to stop.
"""

from __future__ import annotations

import math
from typing import Any

from autofit_workers.scripts.loops import Loops
from autofit_workers.workload.libraries.finders import when_imported

_LIGHTNING = ("pytorch_lightning", "lightning.pytorch")


def follow(loops: Loops) -> None:
    """Makes transformers' and Lightning's trainers end once `loops` are ended, in this process for good."""
    when_imported("transformers.trainer_callback", lambda module: _end_transformers(module, loops))
    for package in _LIGHTNING:
        module = f"{package}.loops.training_epoch_loop"
        when_imported(module, lambda module: _end_lightning(module, loops))


def _end_transformers(module: Any, loops: Loops) -> None:
    """Makes transformers' `Trainer` stop after the current step once `loops` are ended."""
    flow = module.DefaultFlowCallback
    on_step_end = flow.on_step_end

    def ended(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if loops.are_ended:
            loops.take_num_run_steps(state.max_steps)
            state.max_steps = state.global_step
        return on_step_end(self, args, state, control, **kwargs)

    flow.on_step_end = ended


def _end_lightning(module: Any, loops: Loops) -> None:
    """Makes Lightning's training loop stop after the current batch once `loops` are ended."""
    loop = module._TrainingEpochLoop
    on_advance_end = loop.on_advance_end

    def ended(self: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self.trainer
        if loops.are_ended:
            num_steps = trainer.estimated_stepping_batches
            loops.take_num_run_steps(int(num_steps) if 0 < num_steps < math.inf else None)
            trainer.fit_loop.min_epochs, self.min_steps = None, None
            trainer.should_stop = True
        return on_advance_end(self, *args, **kwargs)

    loop.on_advance_end = ended
