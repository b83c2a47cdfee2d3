"""autofit: the largest batch that fits your GPU, with the settings that make it fit, and the evidence.

    >>> import autofit
    >>> result = autofit.tune("davenet", gpu_mem="16G")
    >>> result.best.batch_size, result.best.knobs.conv_algo

A workload is a built-in's name, `package.module:attribute`, `path/file.py:attribute`, or an object:

    >>> workload = autofit.Workload(build_model=..., make_batch=..., loss=..., optimizer="adam")
    >>> autofit.estimate(workload, batch_size=128).peak_reserved_bytes

or a training script as it is, which says how it takes its batch size:

    >>> script = autofit.Script(path="train.py", batch_argument="--batch-size")
"""

from autofit import errors
from autofit.api import check, estimate, observe, peak_curve, tune
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Breakdown, Estimate, Interval
from autofit.questions.check import CheckResult
from autofit.questions.observe import ObservedPeak
from autofit.training.apply import apply_conv_algo, checkpoint_blocks
from autofit.training.find_batch_size import find_executable_batch_size
from autofit.training.lengths import BatchLengths, worst_case_lengths
from autofit.training.probe_step import StepPeak, probe_step
from autofit.tuning.result import Best, FrontierEntry, TuneResult
from workers.knobs import Knobs
from workers.scripts.reference import Script
from workers.workload.workload import Workload

__all__ = [
    "BatchLengths",
    "Best",
    "Breakdown",
    "CheckResult",
    "Estimate",
    "FrontierEntry",
    "Interval",
    "Knobs",
    "ObservedPeak",
    "PredictedCurve",
    "Script",
    "StepPeak",
    "TuneResult",
    "Workload",
    "apply_conv_algo",
    "check",
    "checkpoint_blocks",
    "errors",
    "estimate",
    "find_executable_batch_size",
    "observe",
    "peak_curve",
    "probe_step",
    "tune",
    "worst_case_lengths",
]
