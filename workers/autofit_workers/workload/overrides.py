"""Applies a trial's knobs and setup to a workload."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from autofit_workers.spec.errors import InapplicableError, NoBatchKindsError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.base import QUANTIZATIONS
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.workloads.loop_parts import require_loop
from autofit_workers.workload.generation import generating
from autofit_workers.workload.sizes import sized
from autofit_workers.workload.workload import Workload


def with_overrides(workload: Workload, knobs: Knobs, setup: Setup = ALONE) -> Workload:
    """Copy of a workload in which a trial's knobs and setup replace the workload's own choices.

    A trial is one run, predicted or measured; knobs are values such as the optimizer or the sequence length;
    the setup has the mode and the kind of batches.

    Raises:
        NoBatchKindsError: the worst batch is asked for, and the workload has one kind of batch.
        InapplicableError: `sized`, `generating` or `require_loop` raises it; `make_batch` takes no layout;
            nothing would be trained; or the workload's own step would get another number of optimizers.
    """
    if knobs.seq_len is not None:
        parts: dict[str, Any] = sized(workload, knobs.seq_len, allows_long=setup.allows_long)
        workload = dataclasses.replace(workload, **parts)
    make_batch = workload.make_batch
    if workload.has_batch_kinds:
        make_batch = functools.partial(make_batch, kind=setup.batch_kind)
    elif setup.is_worst_case:
        raise NoBatchKindsError(
            f"--worst-case: {workload.name or 'the workload'} makes one kind of batch; let its make_batch "
            'take a keyword kind ("worst" for the largest batch that the data can make, "typical" for an '
            "ordinary one; autofit.worst_case_lengths helps with both), or leave the option out"
        )
    if knobs.batch_layout != Knobs().batch_layout:
        if not workload.has_batch_layouts:
            raise InapplicableError(
                f"batch_layout {knobs.batch_layout}: {workload.name or 'the workload'} makes one layout of "
                "batches; let its make_batch take a keyword layout, or leave the option out"
            )
        make_batch = functools.partial(make_batch, layout=knobs.batch_layout)
    changed = dataclasses.replace(
        workload,
        make_batch=make_batch,
        optimizer=knobs.optimizer or workload.optimizer,
        mode=setup.mode or workload.mode,
    )
    changed = generating(changed, knobs, setup)
    require_loop(knobs, setup, mode=changed.mode, has_step=changed.step is not None)
    if changed.mode == "train" and knobs.base in QUANTIZATIONS and knobs.adapter is None:
        raise InapplicableError(
            f"weights of {knobs.base} are not trained: name an adapter that is, such as --adapter lora"
        )
    if changed.step is not None and knobs.optimizer is not None and NAMED[knobs.optimizer].rest:
        raise InapplicableError(
            f"{knobs.optimizer} is two optimizers, and the workload's own step takes those that the workload "
            "makes: make them in its optimizer function, and leave out --optimizer"
        )
    return changed
