"""Messages between autofit and the worker processes of its trials: specs, heartbeats and outcomes.

This module needs the standard library only, as a worker must read a spec where only torch is installed.
Every message carries `PROTOCOL_VERSION`; the receiver refuses a message of another version with an error,
instead of misreading it.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from dataclasses import dataclass, field
from typing import Any

from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.attention import IMPLEMENTATIONS
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self, StrEnum
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.shown import shown

PROTOCOL_VERSION = 8
OUTCOME_SCHEMA = "autofit.trial-outcome"
GROUND_TRUTH_SCHEMA = "autofit.ground-truth/1"  # of the rows that `trials.record` writes
# Outcomes are kept in studies, so that those of earlier versions are read too.
READABLE_OUTCOMES = (7, 8)
_READABLE = {OUTCOME_SCHEMA: READABLE_OUTCOMES}

# The phases that follow a trial's steps.
EVALUATION, CHECKPOINT = "evaluation", "checkpoint"
PREDICTION = "prediction"
COMPILING = "compiling graph"  # and its number, while PyTorch's compiler runs in a prediction
ALLOCATOR_PEAK = "allocator peak"  # only CPU trials have this phase, and their budget does not hold for it
# Key in an outcome's environment: the reason why the trial was not run. The outcome is then a prediction.
NOT_TRIED = "not_tried"
LIBRARIES_KIND = "libraries"  # of a reference; see `WorkloadRef`
FOLLOW_UP = (EVALUATION, CHECKPOINT, ALLOCATOR_PEAK)

HOST_ARCHITECTURE = "cpu"


class Verdict(StrEnum):
    """Verdict on a trial (one measured or predicted run): how it ended.

    A prediction that was only traced is `TRACED`; whether its memory suffices is found by replaying the
    trace.
    """

    TRACED = "TRACED"
    FITS = "FITS"
    OOM = "OOM"
    THRASH = "THRASH"
    INVALID = "INVALID"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    LOST = "LOST"

    @property
    def is_about_memory(self) -> bool:
        """Whether the verdict tells if memory sufficed, as `FITS`, `OOM` and `THRASH` do."""
        return self in (Verdict.FITS, Verdict.OOM, Verdict.THRASH)


class Probe(StrEnum):
    """Way to learn how much memory a configuration needs: by prediction, on a card, or on the CPU."""

    PREDICT = "predict"
    CUDA = "cuda"
    CPU = "cpu"


class Evidence(StrEnum):
    """Origin of a memory size.

    `emulated` means measured on another, bigger card, whose memory was limited to that of the card in
    question.
    """

    PREDICTED = "predicted"
    MEASURED = "measured"
    EMULATED = "emulated"
    MEASURED_CPU = "measured-cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCall:
    """Call of a training script: arguments, batch size, folder and launcher.

    Attributes:
        arguments: arguments of its command line, without the one of the batch size.
        batch_argument: the argument that takes the batch size, `--batch-size`; one that ends in `=` is
            joined with it. None for none.
        batch_variable: the environment variable that takes the batch size; None for none.
        batch_name: the constant in the script's code that is the batch size. Without this, `batch_argument`
            and `batch_variable`, the batch size of the script's data loader is changed.
        folder: the current folder of the call.
        keeps_batch: whether the script runs at its own batch size, which the trial then finds out.
        keeps_trackers: whether experiment trackers, such as wandb, keep logging.
        launcher: the command that starts it, a launcher's name and options; empty without any.
        module: the module's name if it is called as `python -m`; else empty.
    """

    arguments: tuple[str, ...] = ()
    batch_argument: str | None = None
    batch_variable: str | None = None
    batch_name: str | None = None
    folder: str = ""
    keeps_batch: bool = False
    keeps_trackers: bool = False
    launcher: tuple[str, ...] = ()
    module: str = ""

    @property
    def sets_loader(self) -> bool:
        """Whether autofit changes the data loader's batch size, because the script has no option for it."""
        return self.batch_argument is None and self.batch_variable is None and self.batch_name is None

    def arguments_at(self, batch_size: int) -> list[str]:
        """Command-line arguments with which the script is called to run at a batch size."""
        argument, size = self.batch_argument, str(batch_size)
        if argument is None or self.keeps_batch:
            return [*self.arguments]
        return [*self.arguments, *([argument + size] if argument.endswith("=") else [argument, size])]

    @staticmethod
    def why_not(knobs: Knobs, setup: Setup) -> str | None:
        """Reason why a script cannot run under training options and a setup, as text; None if it can.

        Args:
            knobs: the training options.
            setup: mode, kind of batches and ranks.
        """
        attention = knobs.attention if knobs.attention in IMPLEMENTATIONS else Knobs().attention
        own = dataclasses.replace(Knobs(), conv_algo=knobs.conv_algo, attention=attention).to_dict()
        misplaced = [
            f"{name} {value}"
            for name, value in knobs.to_dict().items()
            if own[name] != value and value is not None  # grad_accumulation, where global_batch decides it
        ]
        misplaced += [] if setup.mode is None else [f"mode {setup.mode}"]
        misplaced += ["--worst-case"] if setup.is_worst_case else []
        if setup.parallel:
            return (
                "--parallel shards a model, and a script shards its own: leave it out, and say --nproc "
                f"{setup.num_ranks} where a launcher starts so many ranks"
            )
        if misplaced:
            has, it = ("have", "them") if len(misplaced) > 1 else ("has", "it")
            return (
                f"{', '.join(misplaced)} {has} no effect on a script: set {it} inside the script, or drop "
                "the option"
            )
        if knobs.conv_algo not in (*CUDA_POLICIES, "onednn") and not knobs.conv_algo.startswith("cudnn-"):
            return (
                f"conv_algo {knobs.conv_algo} cannot be set from outside a script: choose from "
                f"{', '.join(CUDA_POLICIES)}, cudnn-capped:N, or call autofit.apply_conv_algo in the script"
            )
        return None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls(
            **{**data, "arguments": tuple(data["arguments"]), "launcher": tuple(data["launcher"])},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRef:
    """Reference of a workload, by which another process loads it; may hold pickled bytes.

    Attributes:
        kind: `builtin`, `library`, `import`, `file`, `script` or `pickle`; `libraries` for the pickle of a
            workload of which a trial only imports the libraries, to measure its process.
        target: the built-in's name; `timm:resnet50`; `package.module:attribute`;
            `/abs/file.py:attribute`; `/abs/train.py` of a script; for a pickle, a name for reports.
        source_sha256: digest of the source file or of the pickle, if known; a worker
            whose copy differs refuses to run.
        input_shape: shape of one sample, when the attribute is a module rather than a Workload.
        num_classes: number of classes of the labels that go with `input_shape`.
        task: task that a library's model is trained for; None for the one that its configuration names.
        search_path: folders appended to the worker's import path.
        payload_base64: the cloudpickle bytes of a `pickle` reference.
        script: how a `script` is called.
    """

    kind: str
    target: str
    source_sha256: str | None = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    task: str | None = None
    search_path: tuple[str, ...] = ()
    payload_base64: str | None = None
    script: ScriptCall | None = None

    @property
    def name(self) -> str:
        """Short name of a workload for tables and metric labels."""
        if self.kind == "script":
            return self.target.rsplit("/", 1)[-1]
        if self.kind == "file":
            path, _, attribute = self.target.rpartition(":")
            return f"{path.rsplit('/', 1)[-1]}:{attribute}"
        return self.target

    @property
    def said_of_samples(self) -> tuple[Any, ...]:
        """Sample shape, number of classes and task that a user gave, as a part of the key of a workload.

        The task is left out if none was given.
        """
        return (self.input_shape, self.num_classes, *(() if self.task is None else (self.task,)))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        shape, script = data.get("input_shape"), data.get("script")
        return cls(
            **{
                **data,
                "input_shape": None if shape is None else tuple(shape),
                "search_path": tuple(data.get("search_path", ())),
                "script": None if script is None else ScriptCall.from_dict(script),
            }
        )


# Key in a failed prediction's environment: places of branches on values that a prediction does not have.
DECIDED = "decided"
# Smallest values that are allowed. A process sends two heartbeats a second; if a trial counted as hung after
# less than 2 seconds of silence, it would on a busy machine.
_LEAST = {"batch_size": 1, "num_nodes": 1, "num_warmup_steps": 0, "num_steps": 1, "heartbeat_seconds": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """Spec of a trial: one measured or predicted run of a workload under one memory budget.

    Attributes:
        workload: reference by which the trial's process loads the workload.
        batch_size: samples of a batch, on each rank.
        probe: whether the trial predicts, or measures on a card or on the CPU.
        knobs: the training options.
        budget_bytes: bytes that the allocator may reserve on CUDA and in predictions, and that the process
            may use on the CPU; None for no limit. With several ranks it holds for each.
        is_own_budget: whether the budget is that of the card that the trial will run on. A CUDA trial under
            another card's budget is evidence `emulated`.
        setup: mode, kind of batches, and ranks; a prediction is of one rank, a measured trial runs all.
        architecture: `sm_XY` of the card that a prediction is for, or `HOST_ARCHITECTURE`.
        num_warmup_steps, num_steps: number of full steps for warm-up, and of the measured steps after them.
        num_threads: intra-op threads of a CPU trial, of each rank; None leaves PyTorch's default.
        num_nodes: number of machines that the ranks of a measured trial are spread over evenly; 1 if all run
            on this machine.
        deadline_seconds: time after which all processes of the trial, of all ranks, are killed.
        heartbeat_seconds: seconds of silence after which a trial counts as hung. Its process beats
            several times as often, even while an operator runs for hours; it is only silent if code holds the
            interpreter's lock or if the process is stopped.
        conv_plan: for the convolution algorithm `mixed`: pairs of a layer and its algorithm; other layers
            use the backend's.
        with_follow_up: whether evaluation and checkpoint follow the steps, and on the CPU a profiled step.
        with_tensors: whether the trace of a prediction also lists the tensors and layers of a forward pass.
        with_calls: whether the trace also has the operators that ran, and the stacks of allocations.
        with_alike_ranks: whether the trace also lists groups of ranks that hold and do the same.
        turned: places (`file:line:function`) of a prediction where a branch on an unknown value takes the
            less likely way.
    """

    workload: WorkloadRef
    batch_size: int
    probe: Probe
    knobs: Knobs = field(default_factory=Knobs)
    setup: Setup = field(default_factory=Setup)
    budget_bytes: int | None = None
    architecture: str = "sm_80"
    num_warmup_steps: int = 1
    num_steps: int = 3
    num_threads: int | None = None
    num_nodes: int = 1
    deadline_seconds: float = 600.0
    heartbeat_seconds: float = 60.0
    seed: int = 0
    is_own_budget: bool = False
    conv_plan: tuple[tuple[str, str], ...] = ()
    with_follow_up: bool = True
    with_tensors: bool = False
    with_calls: bool = False
    with_alike_ranks: bool = False
    turned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.setup.num_ranks % self.num_nodes:
            raise ValueError(
                f"{self.setup.num_ranks} ranks cannot be spread evenly over {self.num_nodes} nodes"
            )
        self.knobs.num_batches(self.batch_size)

    @property
    def num_processes(self) -> int:
        """Number of processes of the trial: one for each rank, but a single one for a prediction."""
        return 1 if self.probe is Probe.PREDICT else self.setup.num_ranks

    @property
    def processes_per_node(self) -> int:
        """Number of the trial's processes on one machine."""
        return self.num_processes // (1 if self.probe is Probe.PREDICT else self.num_nodes)

    @property
    def is_for_host(self) -> bool:
        """Whether a prediction is for the CPU, in place of a card."""
        return self.architecture == HOST_ARCHITECTURE

    @property
    def device_kind(self) -> str:
        """Kind of device that a prediction is for, `cuda` or `cpu`."""
        return "cpu" if self.is_for_host else GPU_KIND

    def to_json(self) -> str:
        return _dump("autofit.trial-spec", dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = _require_schema("autofit.trial-spec", json.loads(text))
        return cls(
            **{
                **data,
                "workload": WorkloadRef.from_dict(data["workload"]),
                "probe": Probe(data["probe"]),
                "knobs": Knobs(**data["knobs"]),
                "setup": Setup.from_dict(data["setup"]),
                "conv_plan": tuple(map(tuple, data["conv_plan"])),
                "turned": tuple(data["turned"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device that a size was measured on or predicted for.

    Attributes:
        kind: `cuda` or `cpu`.
        name: the card's or processor's name; for a prediction, the card that was assumed.
        driver: the driver's version, where there is one.
    """

    kind: str
    name: str
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Message that a trial's process sends several times a second, to show that it has not hung.

    Attributes:
        phase: phase of the trial: `start`, `build`, `warm-up step 1`, `step 1`, …, `evaluation`,
            `checkpoint`, `allocator peak`, `prediction`, and while PyTorch's compiler runs in a prediction
            `compiling graph 1`, `compiling graph 2`, ….
        num_steps_done: number of optimizer steps (forward passes, if nothing is trained) completed so far.
        device: device that the trial runs on, once known.
    """

    phase: str
    num_steps_done: int = 0
    device: Device | None = None

    def to_json(self) -> str:
        return _dump("autofit.heartbeat", dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return from_plain(cls, _require_schema("autofit.heartbeat", parse_json(text)))


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak memory of some steps by four measures, each None if it was not measured.

    Attributes:
        allocated_bytes: bytes of live blocks of PyTorch's allocator. On the CPU they are those of one further
            step, as PyTorch's profiler saw it; None if it saw none.
        reserved_bytes: bytes of the allocator's segments (CUDA and predictions only).
        device_bytes: bytes that the system charges the process. On CUDA these are reserved memory and
            context, as NVML or cudaMemGetInfo sees them; on the CPU the peak resident set.
        private_bytes: private writable memory, which the process's limit counts, written to or not (CPU
            only).
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    private_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks:
    """Peaks of one of a trial's ranks.

    Attributes:
        rank: number of the rank, from 0.
        peaks: the largest peaks over all steps of the rank; all None if it was ended because another rank had
            failed.
    """

    rank: int
    peaks: Peaks = field(default_factory=Peaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialError:
    """Error of a trial that found out nothing about memory, with the reason in words for the user.

    Attributes:
        kind: `user`, `protocol`, or the `kind` of an error of `autofit_workers.spec.errors`.
        message: one sentence, with the next step in it.
        traceback: the user's traceback, if there is one.

    Both texts are kept without secrets and without control characters.
    """

    kind: str
    message: str
    traceback: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shown(self.message))
        object.__setattr__(self, "traceback", shown(self.traceback))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """Outcome of a trial (one measured or predicted run): verdict, peaks, and the conditions it ran under.

    Attributes:
        verdict: how the trial ended, such as `FITS` or `OOM`.
        evidence: whether the sizes are measured, and how, or predicted.
        device: device that the sizes are of.
        batch_size, knobs: batch size and training options that ran.
        first_step, steady: peaks of the first step, and of the steps after the warm-up.
        evaluation, checkpoint: peaks of the evaluation step and of the checkpoint that follow
            the steps of a measured training.
        phase: phase in which the trial ended, as in `Heartbeat`; empty if it completed.
        num_steps_done: number of optimizer steps (train) or forward passes (infer) that really ran.
        num_alloc_retries, num_ooms: the CUDA allocator's own counters.
        context_bytes: device memory outside the allocator, after the steps; None if it is not known.
        step_seconds: median duration of a step after the warm-up, which accumulates `Knobs.num_passes`
            batches.
        conv_cost: in a prediction, the time of all convolutions, relative to the time with the backend's
            default algorithm.
        environment: conditions of the trial: versions, threads, malloc settings.
        trace_json: the encoded trace of a prediction, see `autofit_workers.spec.trace`.
        log_tail: the first and the last 4 KiB that the trial's process printed, and how much was between.
        sources: in a prediction, the user's own files that its process used, path → digest; see
            `autofit_workers.process.sources`.
        parallel: parallelism of the ranks that ran together, as in `--parallel`; empty for a single process.
        rank: rank whose values these are: the one that decided the verdict; if all fit, the one with
            the largest peak.
        ranks: the peaks of all ranks.
    """

    verdict: Verdict
    evidence: Evidence
    device: Device
    batch_size: int
    knobs: Knobs
    first_step: Peaks = field(default_factory=Peaks)
    steady: Peaks = field(default_factory=Peaks)
    evaluation: Peaks = field(default_factory=Peaks)
    checkpoint: Peaks = field(default_factory=Peaks)
    phase: str = ""
    num_steps_done: int = 0
    num_alloc_retries: int = 0
    num_ooms: int = 0
    context_bytes: int | None = None
    step_seconds: float | None = None
    conv_cost: float | None = None
    wall_seconds: float = 0.0
    error: TrialError | None = None
    environment: dict[str, str] = field(default_factory=dict)
    trace_json: str | None = None
    log_tail: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    parallel: str = ""
    rank: int | None = None
    ranks: tuple[RankPeaks, ...] = ()

    def __post_init__(self) -> None:
        Parallel.named(self.parallel)  # raises ValueError for an unknown kind

    @property
    def peaks(self) -> Peaks:
        """Largest peak of each measure over first step, steady steps, evaluation and checkpoint."""
        stretches = (self.first_step, self.steady, self.evaluation, self.checkpoint)
        columns = ([getattr(stretch, kind) for stretch in stretches] for kind in Peaks.__slots__)
        return Peaks(
            *(max((peak for peak in column if peak is not None), default=None) for column in columns)
        )

    @property
    def was_run(self) -> bool:
        """Whether the trial ran steps or tried to; otherwise it is a prediction."""
        return self.evidence is not Evidence.PREDICTED

    @property
    def budgeted_bytes(self) -> int | None:
        """Peak bytes to compare with the budget; None if they were not measured.

        On a card they are the reserved bytes, on the CPU the larger of resident and private memory.
        """
        peaks = self.peaks
        if self.device.kind != "cpu":
            return peaks.reserved_bytes
        known = [size for size in (peaks.device_bytes, peaks.private_bytes) if size is not None]
        return max(known, default=None)

    @property
    def samples_per_second(self) -> float | None:
        if not self.step_seconds:
            return None
        num_batches = Parallel.named(self.parallel).num_batches
        return num_batches * self.batch_size * self.knobs.num_passes(self.batch_size) / self.step_seconds

    def to_json(self) -> str:
        return _dump(OUTCOME_SCHEMA, dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return from_plain(cls, _require_schema(OUTCOME_SCHEMA, parse_json(text)))


def _dump(schema: str, data: dict[str, Any]) -> str:
    return json.dumps({"schema": f"{schema}/{PROTOCOL_VERSION}", **data}, separators=(",", ":"))


def _require_schema(schema: str, data: Any) -> dict[str, Any]:
    found = data.pop("schema", None) if isinstance(data, dict) else None
    readable = [f"{schema}/{version}" for version in _READABLE.get(schema, (PROTOCOL_VERSION,))]
    if found not in readable:
        raise ValueError(f"expected a message of schema {readable[-1]}, got {reprlib.repr(found)}")
    assert isinstance(data, dict)
    return data
