"""Names that `autofit` imports from `autofit_workers` besides those of `spec`, `process` and `replay`.

Nothing here imports torch.
"""

from __future__ import annotations

from autofit_workers.tracing.self_test import BATCH_SIZE as SELF_TEST_BATCH_SIZE
from autofit_workers.tracing.self_test import findings
from autofit_workers.tracing.unprotected import MORE
from autofit_workers.trials.isolate import ended_by, reported_to, require_wanted
from autofit_workers.trials.measure.comparison import ComparisonFailedError, OutputComparison, compare_outputs
from autofit_workers.trials.model_parts import PartsFailedError, list_parts
from autofit_workers.trials.outcomes import answering, processor_name, without_answer
from autofit_workers.trials.ranks import joined, took_all_steps
from autofit_workers.trials.run import measured_by, run, start_predictor
from autofit_workers.trials.supervision import StoppedError
from autofit_workers.workload.workload import Workload

__all__ = [
    "MORE",
    "SELF_TEST_BATCH_SIZE",
    "ComparisonFailedError",
    "OutputComparison",
    "PartsFailedError",
    "StoppedError",
    "Workload",
    "answering",
    "compare_outputs",
    "ended_by",
    "findings",
    "joined",
    "list_parts",
    "measured_by",
    "processor_name",
    "reported_to",
    "require_wanted",
    "run",
    "start_predictor",
    "took_all_steps",
    "without_answer",
]
