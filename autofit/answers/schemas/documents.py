"""Table of all documents that commands print with `--json`, or with which they fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autofit.answers.schemas.names import (
    CONV_ALGOS_SCHEMA,
    DOCTOR_SCHEMA,
    FLEET_SCHEMA,
    GPUS_SCHEMA,
    JOBS_SCHEMA,
    MODELS_SCHEMA,
    OBSERVATIONS_SCHEMA,
    SUBMIT_SCHEMA,
)
from autofit.errors import ERROR_SCHEMA
from autofit.explain.views.view import VIEW_SCHEMA
from autofit.hardware.gpus import Gpu, LocalGpu
from autofit.locks.checking import LOCK_CHECK_SCHEMA, LockCheck
from autofit.locks.diff import DIFF_SCHEMA, MemoryDiff
from autofit.locks.locked import LOCKED_SCHEMA, LockedAnswer
from autofit.predict.convolutions.plan import PLAN_SCHEMA, ConvPlan
from autofit.predict.estimate import ESTIMATE_SCHEMA, Estimate, Interval
from autofit.predict.intervals.observations import Observation
from autofit.questions.advice import Advice
from autofit.questions.cards import CARDS_SCHEMA, CardsAnswer
from autofit.questions.check import CHECK_SCHEMA, CheckResult
from autofit.questions.compare import COMPARE_SCHEMA
from autofit.questions.doctor import Check
from autofit.questions.failures.explained import EXPLAINED_SCHEMA, ExplainedError
from autofit.questions.kv import KV_SCHEMA
from autofit.questions.real_runs.observe import OBSERVATION_SCHEMA
from autofit.questions.real_runs.observed_run import RUN_SCHEMA, ObservedRun
from autofit.questions.real_runs.snapshot import SNAPSHOT_SCHEMA, ObservedSnapshot
from autofit.requests.answer import REQUEST_SCHEMA, RequestAnswer
from autofit.serving.speed import ServedLoad
from autofit.tuning.result import TUNE_CARDS_SCHEMA, TuneResult
from autofit.tuning.schema import TUNE_SCHEMA
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device
from autofit_workers.spec.workloads.builtins import BuiltinWorkload
from autofit_workers.trials.door import OutputComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Document that a command prints: the fields of a class, and properties besides them.

    Attributes:
        main: the class whose fields it has; None for a document of the keys in `more` alone.
        properties: names of properties of that class that it has too.
        of_estimate: names of fields that it takes from the class of its estimate.
        more: other keys, by name, with their type and meaning.
        optional: likewise keys that only some options bring.
    """

    main: type | None = None
    properties: tuple[str, ...] = ()
    of_estimate: tuple[str, ...] = ()
    more: tuple[tuple[str, Any, str], ...] = ()
    optional: tuple[tuple[str, Any, str], ...] = ()


DOCUMENTS = {
    TUNE_SCHEMA: Document(
        main=TuneResult,
        properties=("assumptions", "unknowns", "step_seconds", "epoch_seconds", "samples_per_step"),
        of_estimate=("model_class", "num_parameters", "samples_per_second", "batch_source"),
        more=(("num_trials", int, "number of the trials."),),
    ),
    ESTIMATE_SCHEMA: Document(
        main=Estimate,
        properties=("peak_phase", "samples_per_step"),
        optional=(
            ("method", str, "`simulate` or `summary`; not within other documents."),
            ("epoch_seconds", float | None, "with `--samples`, how long that many take."),
            ("what_if", list[dict[str, Any]], "with `--what-if`, for each lever what it saves."),
            ("advice", Advice | None, "with `--what-if`, what makes it fit on the card that is named."),
            ("summary", dict[str, Any], "with `--method summary`, the account of layers."),
            ("difference", dict[str, Any], "with `--method summary`, what a real step adds to it or saves."),
        ),
    ),
    CHECK_SCHEMA: Document(main=CheckResult, properties=("would_thrash", "epoch_seconds")),
    CARDS_SCHEMA: Document(main=CardsAnswer),
    LOCKED_SCHEMA: Document(main=LockedAnswer),
    LOCK_CHECK_SCHEMA: Document(main=LockCheck),
    DIFF_SCHEMA: Document(main=MemoryDiff),
    REQUEST_SCHEMA: Document(main=RequestAnswer),
    PLAN_SCHEMA: Document(main=ConvPlan),
    SNAPSHOT_SCHEMA: Document(main=ObservedSnapshot),
    RUN_SCHEMA: Document(main=ObservedRun),
    EXPLAINED_SCHEMA: Document(main=ExplainedError),
    TUNE_CARDS_SCHEMA: Document(
        more=(
            ("answers", list[TuneResult], "the answer on each card, in the order of `--gpu`."),
            ("unanswered", list[dict[str, str]], "cards of which nothing is predicted: `gpu`, `reason`."),
        )
    ),
    VIEW_SCHEMA: Document(
        more=(
            ("view", str, "name of the view."),
            ("workload", str, "name of the workload."),
            ("batch_size", int, "samples a batch."),
            ("mode", str, "`train` or `infer`."),
            ("knobs", Knobs, "knob setting (precision, optimizer, …) of the step."),
            ("card", str | None, "key of the card; null if none was named."),
            ("architecture", str, "architecture that is assumed, such as `sm_80`."),
            ("devices", list[str], "names of the devices with allocations."),
            ("peak_allocated_bytes", int, "most bytes of live blocks."),
            ("peak_reserved_bytes", int, "most bytes of segments."),
            ("context_bytes", int, "bytes that the process holds outside the allocator."),
            ("versions", dict[str, str], "versions of autofit and PyTorch."),
        ),
        optional=(
            ("step", int, "number of the step that is shown."),
            ("step_peak_allocated_bytes", int, "most bytes of live blocks in that step."),
            ("times", dict[str, Any], "predicted times of the step, and what they rest on."),
            ("total", dict[str, Any], "totals over everything in the view."),
            ("num_passing", int, "rows that pass all filters but the number to show."),
            ("rows", list[dict[str, Any]], "rows of the view, each with its bytes, counts and times."),
            ("lanes", list[dict[str, Any]], "of a timeline, the rows of each device."),
            ("resident_bytes", int, "of a plan, bytes that are there all the time."),
            ("num_unnamed", int, "of a plan, number of buffers that no name was found for."),
            ("unnamed_bytes", int, "of a plan, their bytes."),
            ("policies", list[dict[str, Any]], "of a plan, the memory of each policy of freeing values."),
            ("arena_bytes", int, "of a plan, the bytes that the planned places take."),
            ("places", list[dict[str, Any]], "of a plan, the largest buffers with their offsets."),
            ("notes", list[str], "of a plan, what to know besides."),
        ),
    ),
    KV_SCHEMA: Document(
        more=(
            ("model", str, "name of the model."),
            ("engine", str, "serving engine, such as `vllm`."),
            ("release", str, "its release whose rules were taken."),
            ("gpu", str, "key of the card."),
            ("fits", bool, "whether at least one token fits."),
            ("options", dict[str, Any], "options of the engine, with its own choices filled in."),
            ("memory", dict[str, Any], "division of the card's memory, in bytes."),
            ("kv_cache", dict[str, Any], "blocks and tokens of the cache, and requests that fit at once."),
            ("loads", list[ServedLoad], "predicted seconds by requests at once and their tokens."),
            ("speed_note", str, "what these seconds rest on, or why there are none."),
            ("command", str, "command that starts the engine with these options."),
            ("advice", list[str], "changes that would help, if nothing fits."),
            ("notes", list[str], "what was assumed, and memory that is not counted."),
            ("versions", dict[str, str], "versions of autofit and PyTorch."),
        )
    ),
    COMPARE_SCHEMA: Document(
        more=(
            ("batch_size", int, "samples a batch."),
            ("mode", str, "`infer`."),
            ("device", Device, "card that the peaks are predicted for."),
            ("models", list[dict[str, Any]], "the tensors and predicted peaks of each model."),
            ("outputs", list[OutputComparison], "each model's outputs beside those of the first."),
            ("versions", dict[str, str], "versions of autofit and PyTorch."),
        )
    ),
    OBSERVATION_SCHEMA: Document(
        main=Observation,
        more=(
            ("id", str, "identifier, by which `autofit observe --forget` takes it back."),
            ("predicted", Interval, "what was predicted before it was observed."),
            ("off_by", float, "relative deviation of the observed peak from the likely one."),
            ("is_inside", bool, "whether the observed peak lies within the predicted interval."),
            ("interval", Interval, "what is predicted now."),
            ("note", str, "what to know besides."),
        ),
    ),
    OBSERVATIONS_SCHEMA: Document(
        more=(("observations", list[dict[str, Any]], "peaks that were observed, each with its `id`."),)
    ),
    MODELS_SCHEMA: Document(more=(("models", list[BuiltinWorkload], "the built-in workloads."),)),
    GPUS_SCHEMA: Document(
        more=(
            ("gpus", list[Gpu], "cards of the catalogue."),
            ("local", list[LocalGpu], "cards of this machine."),
        )
    ),
    CONV_ALGOS_SCHEMA: Document(
        more=(("conv_algos", list[dict[str, Any]], "the convolution algorithms, by name."),),
        optional=(
            ("workload", str, "with a model: name of the workload."),
            ("batch_size", int, "with a model: samples a batch."),
            ("mode", str, "with a model: `train` or `infer`."),
            ("device", Device, "with a model: device that the layers are predicted for."),
            ("num_layers", int, "with a model: number of its convolutions."),
            ("layers", list[dict[str, Any]], "with a model: shapes, workspaces and reasons of each layer."),
        ),
    ),
    DOCTOR_SCHEMA: Document(more=(("checks", list[Check], "the result of each check of this machine."),)),
    SUBMIT_SCHEMA: Document(
        more=(
            ("job_id", str | None, "identifier of the job; null if several were submitted."),
            ("fleet", str | None, "name of the fleet, with a job for each of several cards; else null."),
            ("jobs", list[dict[str, Any]], "the jobs: `job_id`, `gpu`, `state`, and whether each is new."),
        )
    ),
    JOBS_SCHEMA: Document(
        more=(
            ("jobs", list[dict[str, Any]], "jobs with their states, times, best batches and options."),
            ("notes", list[str], "a sentence for each stored record that cannot be read."),
        )
    ),
    FLEET_SCHEMA: Document(
        more=(
            ("fleet", str, "name of the fleet."),
            ("cards", list[dict[str, Any]], "for each card the job, its state, best batch and result."),
        )
    ),
    ERROR_SCHEMA: Document(
        more=(
            ("kind", str, "a word for programs, which stays the same between versions."),
            ("message", str, "what is wrong, and what to do, in one sentence."),
            ("exit_code", int, "exit code of the command."),
        )
    ),
}
