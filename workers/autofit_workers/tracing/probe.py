"""Probe `predict`: traces the first steps of a workload or a script on a fake device.

The outcome of a trial is then a trace: allocations and frees, from which peaks are replayed.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # else the first fake operator imports it, within a trace

from autofit_workers.apply import adapter, compiling, process_state, setting
from autofit_workers.apply.base import quantize
from autofit_workers.apply.parallel.alike_ranks import alike_ranks
from autofit_workers.apply.parallel.ranks import Ranks, require_one_kind, require_one_mesh
from autofit_workers.apply.parallel.strategy import Dealt, Engine
from autofit_workers.process.garbage import importing, without_collections
from autofit_workers.process.heart import LastWord, Report, unheard, unsaid
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.base import QUANTIZATIONS
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.protocol import Device, Evidence, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.setup import GENERATE
from autofit_workers.spec.trace import AS_ASKED, BatchCount, BatchSource, Category, Seen, Trace
from autofit_workers.tracing import followed_release
from autofit_workers.tracing.built_model import BuiltModel
from autofit_workers.tracing.compiled import entry as compiled
from autofit_workers.tracing.explaining import explained
from autofit_workers.tracing.fake import (
    dynamo,
    fake_device,
    fake_gpu,
    flex_attention,
    pinned,
    streams,
)
from autofit_workers.tracing.fake.fake_device import FakeDeviceMode
from autofit_workers.tracing.fake.libraries import of_deepspeed, of_quanto, of_transformers
from autofit_workers.tracing.fake.ranks import group, shelves
from autofit_workers.tracing.host.fake_cpu import FakeCpuMode
from autofit_workers.tracing.host.recorder import HostRecorder
from autofit_workers.tracing.kernels import extensions, run_time, triton
from autofit_workers.tracing.kernels.registry import REGISTRY
from autofit_workers.tracing.kernels.stand_ins import asking
from autofit_workers.tracing.recording.call_log import CallLog
from autofit_workers.tracing.recording.data_parallel import DataParallel
from autofit_workers.tracing.recording.generation import TracedGeneration
from autofit_workers.tracing.recording.owners import gradients, owned, states
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.sharding import followed as sharding_followed
from autofit_workers.tracing.recording.step_ends import StepEnds
from autofit_workers.tracing.recording.streams.watch import StreamWatch
from autofit_workers.tracing.recording.tensor_list import TensorList
from autofit_workers.tracing.unprotected import notes_of
from autofit_workers.tracing.values.decisions import Decisions, begin
from autofit_workers.workload.in_backward import make_in_backward
from autofit_workers.workload.libraries.importing import without_missing_operators
from autofit_workers.workload.optimizers import make_optimizers, require_library
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.sizes import sample_size
from autofit_workers.workload.step import WHOLE, infer_step, parts_of_step, seed, train_step
from autofit_workers.workload.workload import Optimizers, Workload, check_batch, resolve, tensors_of

NUM_TRACED_STEPS = 3

_CATEGORIES = {
    "input": Category.INPUT,
    "forward": Category.ACTIVATION,
    "backward": Category.OTHER,
    "optimizer": Category.OTHER,
}


def predict(spec: TrialSpec, last_word: LastWord = unsaid, report: Report = unheard) -> TrialOutcome:
    """Traces one configuration and returns its outcome.

    PyTorch stays patched in this process (see `fake_gpu`), so call it in a child process; for a script, in
    one that runs nothing else afterwards.

    Args:
        last_word: called with a function that returns the outcome, if a script neither ends nor unwinds.
        report: called when PyTorch's compiler begins and ends a graph.

    Raises:
        DataDependentError: the step needs values that only a real run has.
        InapplicableError: knobs cannot be combined.
        UnsupportedError: an operator, or this release of PyTorch, cannot run without a GPU; or the model is
            to be compiled for the CPU.
    """
    compiled.report_to(report)
    compiling.require_compilable(spec.knobs)
    if spec.knobs.compile:
        _require_followed(spec)
    if spec.workload.kind == "script":
        return _outcome(trace_script(spec, last_word), spec)
    begin_program(spec)
    dynamo.install()  # before the workload's imports, which may import the compiler
    if not spec.is_for_host:
        compiled.install()  # likewise, as they may compile
    with without_missing_operators():  # imports may happen within a step too
        with importing():
            workload = resolve(spec.workload)
        return _outcome(trace_workload(workload, spec), spec)


def _require_followed(spec: TrialSpec) -> None:
    """Raises `UnsupportedError` if a compiled step cannot be followed on the device of a prediction."""
    if spec.is_for_host:
        raise UnsupportedError(
            "what a compiled model takes on the CPU is measured, not predicted: leave compile out, or "
            "measure (--probe measure)"
        )


def trace_script(spec: TrialSpec, last_word: LastWord = unsaid) -> Trace:
    """Runs a script on a fake GPU for at least `NUM_TRACED_STEPS` steps and returns their trace.

    Call it in a process that runs nothing else afterwards.

    Args:
        last_word: see `predict`.

    Raises:
        UnsupportedError: the trial is for the CPU.
        Exception: see `ScriptTracer.run`.
    """
    from autofit_workers.tracing.scripts.tracer import ScriptTracer

    if spec.is_for_host:
        raise UnsupportedError("what a script takes on the CPU is not predicted, only measured")
    begin_program(spec)
    install(spec)
    tracer = ScriptTracer(spec, NUM_TRACED_STEPS)
    return tracer.run(lambda: last_word(lambda: _outcome(tracer.trace(), spec)))


def begin_program(spec: TrialSpec) -> None:
    """Lets this process forget what earlier predictions noted, before it follows another program."""
    followed_release.begin_program(spec.setup.torch, shards=spec.setup.num_ranks > 1)
    REGISTRY.begin_program()
    of_deepspeed.install()
    of_transformers.install()
    of_transformers.begin_program()
    of_quanto.install()
    asking.install()
    asking.begin_program()
    flex_attention.begin_program()
    triton.install()
    triton.begin_program()
    shelves.begin_program()
    extensions.begin_program()
    run_time.begin_program()
    adapter.begin_program()


def _outcome(trace: Trace, spec: TrialSpec) -> TrialOutcome:
    return TrialOutcome(
        verdict=Verdict.TRACED,
        evidence=Evidence.PREDICTED,
        device=Device(kind=spec.device_kind, name=spec.architecture),
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        num_steps_done=NUM_TRACED_STEPS,
        environment=trace.versions,
        trace_json=trace.to_json(),
    )


def trace_workload(workload: Workload, spec: TrialSpec) -> Trace:
    """Runs at least `NUM_TRACED_STEPS` steps on a fake device, more if memory grows; returns their trace."""
    install(spec)
    with importing():
        setting.import_libraries(spec.knobs)
    algorithm = setting.algorithm_on(spec.knobs, spec.device_kind)
    log = CallLog() if spec.with_calls else None
    recorder = HostRecorder(algorithm, log) if spec.is_for_host else Recorder(log)
    tensors = TensorList(recorder) if spec.with_tensors else None
    observe = recorder.observe if tensors is None else tensors.observe
    mode = (FakeCpuMode if spec.is_for_host else fake_gpu.FakeGpuMode)(observe)
    mode.worked = recorder.note_work
    if spec.setup.parallel.is_one_process and isinstance(mode, fake_gpu.FakeGpuMode):
        mode.num_cards, recorder.card = spec.setup.num_ranks, spec.setup.rank or 0
    kind = None if not workload.has_batch_kinds else spec.setup.batch_kind
    workload = with_overrides(workload, spec.knobs, spec.setup)
    built = BuiltModel(workload.build_model)
    workload = dataclasses.replace(workload, build_model=built)
    ranks = Ranks(spec.setup.parallel)
    ranks.require_applicable(spec, workload)
    streams.begin_program(StreamWatch(recorder))
    pinned.begin_program()
    decisions = Decisions(spec.turned, spec.setup.nonzero_share)
    begin(decisions)
    training = workload.mode == "train"
    seed(spec.seed)
    # Without multithreading the autograd engine runs backward in this thread, in which the mode is active.
    with (
        explained(),
        setting.onednn(enabled=conv.policy_of(algorithm, "cpu").enabled),
        process_state.kept(torch.device("cpu")),  # this process may run later predictions
        setting.switched(spec.knobs, spec.device_kind),
        mode,
        _among_ranks(spec, ranks, recorder),
        torch.autograd.set_multithreading_enabled(False),
    ):
        if spec.is_for_host:
            setting.set_threads(spec.num_threads)
        recorder.mark("model")
        recorder.category = Category.PARAMETER
        asking.offer_for(spec.knobs)
        model = _built(workload, spec, ranks, mode)
        model.train(training)
        parallel = _parallel(spec, model, mode=mode, recorder=recorder) if training else None
        optimizer = _optimizers(workload, model, spec.knobs, recorder) if training else None
        engine = _engine(spec, ranks, model, optimizer, mode=mode, recorder=recorder)
        generation: TracedGeneration | None = None
        step_ends = StepEnds(recorder)
        step = _TracedStep(
            spec,
            mode=mode,
            recorder=recorder,
            tensors=tensors,
            workload=workload,
            model=model,
            ranks=ranks,
            optimizer=optimizer if engine is None else engine.optimizer,
            engine=engine,
        )
        with recorder.following(model), _wrapping_weights_again(spec, mode):
            if workload.mode == GENERATE:
                generation = TracedGeneration(recorder, spec.knobs.new_tokens, spec.knobs.cache)
                with generation.followed(model):
                    step.run(1)
            else:
                _run_steps(step, step_ends, recorder, parallel)
        recorder.close()
        pinned_notes = pinned.notes()
    trace = Trace(
        workload=spec.workload.name,
        batch_size=spec.batch_size,
        mode=workload.mode,
        optimizer=workload.optimizer if isinstance(workload.optimizer, str) else "custom",
        batch_kind=kind,
        batch_count=AS_ASKED if step.batch_note is None else BatchCount(source=BatchSource.ONE_SAMPLE),
        num_ranks=spec.setup.num_ranks,
        parallel=spec.setup.parallel.name if spec.setup.parallel.is_told else "",
        rank=spec.setup.rank or 0,
        alike_ranks=alike_ranks(model, spec.setup.parallel) if spec.with_alike_ranks else (),
        knobs=spec.knobs,
        allocations=tuple(recorder.allocations),
        events=recorder.events(),
        marks=tuple(recorder.marks),
        versions=followed_release.versions(),
        tensors=() if tensors is None else tuple(tensors.listed),
        layers=() if tensors is None else tuple(tensors.layers),
        calls=() if log is None else tuple(log.calls),
        assumptions=decisions.assumptions,
        model=built.traced(spec.workload, workload.make_batch),
        sample=sample_size(workload, spec.knobs.seq_len),
        host_waits=tuple(recorder.order.host_waits),
        work=recorder.work_of_last_step(),
        seen=Seen(step_ends=tuple(step_ends.positions), num_eager_graphs=compiled.num_eager_graphs()),
        notes=(
            *ranks.notes(model, spec.knobs.precision),
            *decisions.notes,
            *mode.notes,
            *asking.notes(),
            *adapter.notes(),
            *extensions.notes(),
            *run_time.notes(),
            *of_transformers.notes(),
            *triton.notes(),
            *compiled.notes(),
            *pinned_notes,
            *_left_out(workload),
            *([step.batch_note] if step.batch_note else []),
            *followed_release.notes(),
            *notes_of(spec),
        ),
    )
    return trace if generation is None else generation.completed(trace)


def _run_steps(step: _TracedStep, ends: StepEnds, recorder: Recorder, parallel: DataParallel | None) -> None:
    number = 0
    while number < NUM_TRACED_STEPS or ends.want_more():
        number += 1
        recorder.work.is_paused = number < NUM_TRACED_STEPS
        step.run(number)
        ends.add()
        if number == 1 and parallel is not None:
            parallel.check_step()


def _optimizers(workload: Workload, model: torch.nn.Module, knobs: Knobs, recorder: Recorder) -> Optimizers:
    """Optimizers of a workload; with `optimizer_in_backward`, hooked to step during backward."""
    if isinstance(workload.optimizer, str):
        with fake_gpu.unseen():
            require_library(workload.optimizer)
    if not knobs.optimizer_in_backward:
        return make_optimizers(workload, model, knobs.optimizer_impl)

    def tell(parameter: torch.Tensor) -> None:
        recorder.recategorize(gradients([parameter]), Category.GRADIENT)

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(tell)  # before the hook that frees it
    return make_in_backward(workload, model, knobs.optimizer_impl)


def _left_out(workload: Workload) -> tuple[str, ...]:
    """Note for the user on memory of a named optimizer's step that the trace lacks; empty if none."""
    optimizer = workload.optimizer if workload.mode == "train" else None
    said = NAMED[optimizer].left_out if isinstance(optimizer, str) else ""
    return (f"{optimizer}: {said}",) if said else ()


@contextmanager
def _among_ranks(spec: TrialSpec, ranks: Ranks, recorder: Recorder) -> Iterator[None]:
    """Context in which this process is one rank of a fake process group, if parallelism shards the model.

    Plain DDP needs no group, as `DataParallel` simulates it.

    Args:
        spec: description of the trial.
        ranks: kinds of parallelism, applied to this process.
        recorder: records the memory that the libraries of the kinds allocate.
    """
    setup = spec.setup
    if not setup.parallel.shards:
        yield
        return
    group.install()
    with ExitStack() as kept:
        kept.enter_context(group.joined(setup.num_ranks, setup.rank or 0))
        kept.enter_context(ranks.joined(spec.device_kind))
        kept.enter_context(sharding_followed(recorder, ranks.followed))
        yield


def _wrapping_weights_again(spec: TrialSpec, mode: FakeDeviceMode) -> AbstractContextManager[None]:
    """Context in which bitsandbytes can, in each step, rewrap quantized parameters that FSDP replaced."""
    if spec.setup.parallel.shards and spec.knobs.base in QUANTIZATIONS:
        return fake_device.parameters_made_like_others(mode)
    return nullcontext()


def _engine(
    spec: TrialSpec,
    ranks: Ranks,
    model: torch.nn.Module,
    optimizer: Optimizers | None,
    *,
    mode: FakeDeviceMode,
    recorder: Recorder,
) -> Engine | None:
    """Engine, such as DeepSpeed's, that trains the model in place of its optimizers; None without one."""
    if optimizer is None or not ranks.brings_model:
        return None
    recorder.category = Category.OTHER
    with mode.in_step():
        return ranks.engine(model, optimizer, spec.knobs, spec.batch_size)


def _built(workload: Workload, spec: TrialSpec, ranks: Ranks, mode: FakeDeviceMode) -> torch.nn.Module:
    """Model with the knob setting applied, on the fake device unless an engine moves it there later."""
    shards = spec.setup.parallel.shards
    # Building imports libraries, whose many objects would make garbage collections slow and useless.
    with without_collections(), fake_device.parameters_diverted(mode):
        model = setting.built_model(workload.build_model, spec.knobs)
        if not shards or spec.is_for_host:
            _bring(model, ranks.dealt(model, spec.knobs.base), mode)
        elif spec.knobs.base in QUANTIZATIONS:
            fake_device.quantize_before_sharding(mode, model)
        model = ranks.cut(setting.adapted_model(model, spec.knobs, shards=shards), workload)
    if isinstance(mode, fake_gpu.FakeGpuMode):
        mode.offloads = spec.setup.parallel.offloads
    if shards and not ranks.brings_model:
        model = _spread(workload, spec, ranks, model, mode)
    return compiling.compiled(model, spec.knobs) if spec.knobs.compile else model


def _bring(model: torch.nn.Module, dealt: Dealt | None, mode: FakeDeviceMode) -> None:
    """Moves a model from the host to the fake device, or to several fake GPUs.

    Args:
        model: the model, on the host.
        dealt: assignment of its modules to several GPUs; None to move all to one.
        mode: the fake device.
    """
    if dealt is None:
        fake_device.move_to_device(mode, model, then=quantize)
        return
    fake_device.move_to_device(mode, model, then=quantize, device_of=dealt.device_of)
    dealt.link()


def _spread(
    workload: Workload, spec: TrialSpec, ranks: Ranks, model: torch.nn.Module, mode: FakeDeviceMode
) -> torch.nn.Module:
    """Model sharded to this rank's part; on a GPU, parts are moved from the host one by one."""
    if not spec.is_for_host:
        fake_device.move_buffers(mode, model)
    with mode.in_step(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="It seems like you did not set/select the default device")
        model = ranks.spread(model, device_kind=mode.device.type, precision=spec.knobs.precision)
    if workload.mode == "train" and spec.knobs.clip_grad_norm is not None:
        require_one_mesh(model, spec.setup.parallel)
    if not spec.is_for_host and not spec.setup.parallel.offloads:
        fake_device.move_to_device(mode, model)  # parameters that are not sharded
        is_named = workload.mode == "train" and isinstance(workload.optimizer, str)
        if is_named and spec.knobs.optimizer_impl != "loop" and not spec.knobs.optimizer_in_backward:
            require_one_kind(model, spec.setup.parallel)
    return model


def _parallel(
    spec: TrialSpec, model: torch.nn.Module, *, mode: FakeDeviceMode, recorder: Recorder
) -> DataParallel | None:
    if not spec.setup.parallel.has_ddp:
        return None
    with mode.in_step():
        return DataParallel(model, recorder, spec.setup.num_ranks)


class _TracedStep:
    """Runs traced steps of a workload under a knob setting, and marks their phases in the trace.

    Attributes:
        batch_note: note for the user on the batch's size, from `check_batch`; None if it has none.
    """

    def __init__(
        self,
        spec: TrialSpec,
        *,
        mode: FakeDeviceMode,
        recorder: Recorder,
        tensors: TensorList | None,
        workload: Workload,
        ranks: Ranks,
        model: torch.nn.Module,
        optimizer: Optimizers | None,
        engine: Engine | None,
    ) -> None:
        if engine is not None:
            workload = engine.stepped(workload, self._begin_phase)
        self._spec = spec
        self._mode = mode
        self._recorder = recorder
        self._tensors = tensors
        self._workload = workload
        self._model = model
        self._optimizer = optimizer
        self._engine = engine
        self._autocast = setting.autocast_factory(spec.knobs, mode.device.type, spec.setup.parallel)
        self._scaler = setting.make_scaler(spec.knobs, mode.device.type)
        self._sharing = ranks.sharing(model, mode.device.type)
        self._number = 0
        self._part = WHOLE
        self.batch_note: str | None = None

    def run(self, number: int) -> None:
        """Traces step number `number`, then names and categorizes what model and optimizer hold."""
        self._number = number
        recorder, model, optimizer = self._recorder, self._model, self._optimizer
        for part in parts_of_step(self._spec):
            self._part = part
            self._run_part()
        if self._spec.with_calls:
            recorder.name(owned(model, optimizer))
        if optimizer is None:
            return
        recorder.recategorize(model.parameters(), Category.PARAMETER)  # sharding may flatten them anew
        recorder.recategorize(gradients(model.parameters()), Category.GRADIENT)
        recorder.recategorize(states(optimizer), Category.OPTIMIZER_STATE)
        for tensors, category in () if self._engine is None else self._engine.held():
            recorder.recategorize(tensors, category)

    def _run_part(self) -> None:
        """Traces one part of a step, such as an accumulated batch: makes a batch and runs it."""
        self._begin_phase("input")
        batch_size = self._spec.batch_size * self._spec.setup.parallel.num_microbatches
        batch = self._workload.make_batch(batch_size, self._mode.device)
        self.batch_note = check_batch(batch, batch_size)
        if self._spec.with_calls:
            self._recorder.name(
                ("", f"input:{number}", tensor) for number, tensor in enumerate(tensors_of(batch))
            )
        with self._mode.in_step():
            batch = self._mode.taken_in(batch)
            with self._sharing(batch):
                self._take(batch)

    def _take(self, batch: Any) -> None:
        batch = setting.converted_batch(batch, self._spec.knobs)
        if self._tensors is None or self._number > 1 or not self._part.is_first:
            self._run(batch)
            return
        with self._tensors.of_pass(self._model, batch):
            self._run(batch)

    def _run(self, batch: Any) -> None:
        """Runs a training step, or an inference step without an optimizer, on a batch."""
        model, optimizer, knobs = self._model, self._optimizer, self._spec.knobs
        if optimizer is None:
            infer_step(self._workload, model, batch, autocast=self._autocast, phase=self._begin_phase)
            return
        train_step(
            self._workload,
            model,
            optimizer,
            batch,
            autocast=self._autocast,
            scaler=self._scaler,
            set_to_none=knobs.set_to_none,
            clip_grad_norm=knobs.clip_grad_norm,
            in_backward=knobs.optimizer_in_backward,
            phase=self._begin_phase,
            part=self._part,
        )

    def _begin_phase(self, name: str) -> None:
        if name == "optimizer":
            self._recorder.recategorize(gradients(self._model.parameters()), Category.GRADIENT)
        self._recorder.mark(f"step {self._number} {name}")
        self._recorder.category = _CATEGORIES[name]


def install(spec: TrialSpec) -> None:
    """Patches PyTorch in this process, for good, so that it has the fake device of a trial.

    Raises:
        UnsupportedError: this release of PyTorch cannot be patched.
    """
    try:
        (fake_device if spec.is_for_host else fake_gpu).install()
    except RuntimeError as error:
        raise UnsupportedError(str(error)) from error
    if not spec.is_for_host:
        compiled.install()
        compiled.begin_program()
