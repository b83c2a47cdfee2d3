"""The Python interface: `tune`, `estimate`, `check`, `observe`, `kv`, `peak_curve`, `peak_surface`.

`autofit.tuning.session` runs a search. Workloads run in child processes, so that the caller's process is not
changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from autofit.errors import UsageError
from autofit.events import EventSink
from autofit.hardware.gpus import find_gpu
from autofit.notebooks.progress import notebook_progress
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.predict.intervals.observations import PeakKind
from autofit.predict.predictor import Predictor, local_predictor
from autofit.predict.sizes.surface import PredictedSurface
from autofit.questions.check import CheckResult, run_check
from autofit.questions.kv import KvCache, KvQuestion, kv_cache
from autofit.questions.real_runs.observe import ObservedPeak, RealPeak, run_observe
from autofit.settings.resolve import resolve_one_configuration, resolve_settings
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer, require_its_own
from autofit.tuning.result import TuneResult
from autofit.tuning.session import run
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.door import Workload


def tune(
    workload: Workload | Script | str, *, on_event: EventSink | None = None, **options: Any
) -> TuneResult:
    """Finds the largest batch size that fits in memory, for each requested knob setting (precision, …).

    Args:
        workload: a `Workload`, a `Script`, or a name such as `"gpt2"`, `"timm:resnet50"` or
            `"train.py:make_workload"`, as `Workload.load` takes it.
        on_event: called with each event of `autofit.events` while the search runs; without it, a notebook
            shows a bar where tqdm is installed.
        options: options of `autofit tune`, with `_` for `-`: `gpu_mem="16G"` or `gpu="rtx-3090"`,
            `device`, `probe`, `mode`, `worst_case`, `parallel`, `search`, `max_batch`, `risk`, …, and the
            knobs, the fields of `autofit_workers.spec.knobs.Knobs`: `conv_algo`, `precision`, `optimizer`, …

    Returns:
        The largest batch for each knob setting, the best and the recommended configuration, and their
        evidence; `best` is None if nothing fits.

    Raises:
        UsageError: an option is wrong, or neither a card nor its memory is known.
        WorkloadFailedError: the workload fails, whatever the batch.
        InfrastructureError: storage, cluster or driver fail.
    """
    if misplaced := options.keys() & {"model", "metrics_port", "metrics_host"}:
        raise UsageError(
            f"tune() takes no {', '.join(sorted(misplaced))}: the workload is its first argument, and "
            "metrics are an event sink, on_event=autofit.serve.metrics.Metrics(registry)"
        )
    settings = resolve_settings({**options, **_named(workload)}, {}, None)
    reference = _referred(workload, settings)
    with notebook_progress() if on_event is None else contextlib.nullcontext(on_event) as emit:
        return run(settings, reference, emit=emit)


def estimate(workload: Workload | Script | str, *, batch_size: int | None = None, **options: Any) -> Estimate:
    """Predicts the peak memory of one configuration, from one traced step at that batch size.

    Args:
        workload: a `Workload`, a `Script`, or a name such as `"gpt2"`, `"timm:resnet50"` or
            `"train.py:make_workload"`, as `Workload.load` takes it.
        batch_size: samples a batch; for a script, None for its own batch size.
        options: options of `autofit estimate`, with `_` for `-`, and the knobs, the fields of
            `autofit_workers.spec.knobs.Knobs` (`conv_algo`, `precision`, `optimizer`, …). Among them are
            gpu: a GPU model that `autofit gpus` lists; without it the likely peak is that of an sm_80 card,
                and the interval covers all of NVIDIA's architectures in that list.
            mode: `train`, `infer` or `generate`, instead of the workload's own.
            worst_case: whether to predict the worst batches, of a workload whose `make_batch` takes a `kind`.
            parallel: `fsdp:8`, or another form of `--parallel`, to predict one of several ranks;
                `batch_size` is that of one rank, for a pipeline that of one micro-batch.
            rank: number of the rank to predict; `"all"` for the one that needs the most, the default for a
                pipeline.
            assume: `nonzero=SHARE`, the share of a tensor that a mask is assumed to select.
            allow_long: whether samples may be longer than the model was made for.

    Raises:
        UsageError: an option is wrong, or a card, a knob or such a batch size does not exist.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    settings, predictor = _prediction(workload, options, "an estimate")
    return predictor.estimate(settings.configuration("an estimate"), settings.card, batch_size)


def check(workload: Workload | Script | str, *, batch_size: int, **options: Any) -> CheckResult:
    """Predicts from one traced step whether a configuration fits: yes, no, or unsure.

    Args:
        workload: a `Workload`, a `Script`, or a name such as `"gpt2"`, `"timm:resnet50"` or
            `"train.py:make_workload"`, as `Workload.load` takes it.
        batch_size: samples a batch; with several ranks, of one rank.
        options: options of `autofit check`, with `_` for `-`: `gpu_mem="16G"` or `gpu="rtx-3090"`, else
            the local card; `conv_algo`, `precision`, `optimizer`, `mode`, `margin`, `reserve`, …

    Raises:
        UsageError: an option is wrong, or neither a card nor its memory is known.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    settings, predictor = _prediction(workload, options, "a check")
    return run_check(settings, predictor, batch_size)


def observe(
    workload: Workload | Script | str,
    *,
    peak_bytes: int,
    kind: str,
    batch_size: int | None = None,
    **options: Any,
) -> ObservedPeak:
    """Compares a real run's peak with its prediction, and stores it, so that later predictions are narrower.

    Args:
        workload: a `Workload`, a `Script`, or a name such as `"gpt2"`, `"timm:resnet50"` or
            `"train.py:make_workload"`, as `Workload.load` takes it.
        peak_bytes: peak memory of the real run, in bytes.
        kind: how it was read: `allocated` (`torch.cuda.max_memory_allocated()`), `reserved`
            (`max_memory_reserved()`) or `device` (what nvidia-smi shows for the process, which needs `gpu`).
        batch_size: samples a batch; for a script, None for its own batch size.
        options: options of `estimate` that describe the run: `gpu`, `mode`, …, and the knobs.

    Raises:
        UsageError: an option is wrong, or the peak cannot be of this card or configuration.
        WorkloadFailedError: the workload fails, or cannot be predicted.
        StorageError: the observation cannot be stored.
    """
    if kind not in tuple(PeakKind):
        raise UsageError(f"kind must be one of {', '.join(PeakKind)}; got {kind!r}")
    settings = resolve_one_configuration({**options, **_named(workload)}, "an observation")
    reference = _referred(workload, settings)
    peak = RealPeak(kind=PeakKind(kind), num_bytes=peak_bytes, batch_size=batch_size)
    return run_observe(settings, reference, _predictor(reference, settings), peak)


def kv(model: str, *, gpu: str, **options: Any) -> KvCache:
    """Predicts the memory that a server of a language model (vLLM, …) has left for its KV cache.

    Args:
        model: a model of transformers, `hf:MODEL_TYPE` or `hf:path/to/config.json`.
        gpu: a GPU model that `autofit gpus` lists, such as `"a100-40g"`.
        options: options of `autofit kv`, with `_` for `-`, the fields of `KvQuestion`: `engine="vllm"`,
            `tensor_parallel=2`, `max_model_len=8192`, `kv_dtype="fp8"`, …

    Raises:
        UsageError: an option is wrong, or the server does not start with these options.
        WorkloadFailedError: the model cannot be built.
    """
    known = {each.name for each in dataclasses.fields(KvQuestion)} - {"gpu"}
    if unknown := options.keys() - known:
        raise UsageError(f"kv() takes no {', '.join(sorted(unknown))}: expected {', '.join(sorted(known))}")
    return kv_cache(refer(model), KvQuestion(gpu=find_gpu(gpu), **options))


def peak_curve(workload: Workload | Script | str, **options: Any) -> PredictedCurve:
    """Predicts peak memory as a function of the batch size: `curve(batch_size)` is an `Estimate`.

    The curve costs three traced steps; after that a batch size costs milliseconds. Options and errors are
    those of `estimate`.
    """
    settings, predictor = _prediction(workload, options, "a curve")
    return predictor.curve(settings.configuration("a curve"), settings.card)


def peak_surface(workload: Workload | str, **options: Any) -> PredictedSurface:
    """Predicts peak memory by batch size and size of a sample: `surface(batch_size, size)` is an `Estimate`.

    The surface costs five traced steps, and three more for batches of one sample; after that a point costs
    milliseconds. A size is the number of tokens of a text, the side of an image, or what the workload's
    `make_batch` takes as `size`. Options and errors are those of `estimate`.
    """
    settings, predictor = _prediction(workload, options, "a surface")
    return predictor.surface(settings.configuration("a surface"), settings.card)


def _prediction(
    workload: Workload | Script | str, options: dict[str, Any], what: str
) -> tuple[TuneSettings, Predictor]:
    """Settings of one configuration, read from keyword options, and the predictor of its workload.

    Args:
        options: keyword options of the call.
        what: result of the call, for error messages, such as `a check`.
    """
    settings, reference = described(workload, options, what)
    return settings, _predictor(reference, settings)


def described(
    workload: Workload | Script | str, options: dict[str, Any], what: str
) -> tuple[TuneSettings, WorkloadRef]:
    """Settings of one configuration, read from keyword options, and a reference to its workload.

    Args:
        workload, options: those of `estimate`.
        what: result of the call, for error messages, such as `a check`.

    Raises:
        UsageError: an option is wrong, or there is no such workload.
    """
    settings = resolve_one_configuration({**options, **_named(workload)}, what)
    return settings, _referred(workload, settings)


def _predictor(reference: WorkloadRef, settings: TuneSettings) -> Predictor:
    return local_predictor(reference, setup=settings.setup, fresh=settings.fresh)


def _named(workload: Workload | Script | str) -> dict[str, Any]:
    """Options that a workload or script stands for: the name, and how a script's ranks are started."""
    if isinstance(workload, str):
        return {"model": workload}
    if not isinstance(workload, Script):
        return {"model": workload.name or "workload"}
    ranks = {
        "nproc": workload.num_processes, "nnodes": workload.num_nodes, "launcher": workload.launcher,
    }  # fmt: skip
    return {"script": workload.name, **ranks}


def _referred(workload: Workload | Script | str, settings: TuneSettings) -> WorkloadRef:
    if isinstance(workload, str):
        return refer(workload, settings)
    if settings.says_of_a_sample:
        raise UsageError("a Workload makes its own batches: leave out input, classes and task")
    if isinstance(workload, Script):
        require_its_own(settings)
    try:
        return workload.reference()
    except WorkloadError as error:
        raise UsageError(str(error)) from error
