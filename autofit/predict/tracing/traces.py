"""Traces of one workload, each made once by a worker and kept by its digest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from autofit.dispatch.base import Runner
from autofit.errors import DispatchError, UsageError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.budget import DEFAULT_ARCHITECTURE
from autofit.predict.convolutions.choice import require_its_conv_algo
from autofit.predict.failures import raise_if_failed
from autofit.predict.tracing.ahead import TracesAhead
from autofit.predict.tracing.compiling import CompilingProgress
from autofit.predict.tracing.kept_traces import KeptTraces
from autofit_workers.replay.curve.peak_curve import traced_knobs
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    HOST_ARCHITECTURE,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import BatchSource, Trace
from autofit_workers.trials.door import reported_to

# Beyond it sizes of tensors need more than 64 bits, long after any card is full.
_LARGEST_BATCH = 2**31 - 1


class Traces:
    """Makes traces of one workload on demand, and answers questions about the workload from them.

    A trace lists the allocations and frees of a step. Knob settings that differ only in the convolution
    algorithm share their traces: it decides only about scratch memory, which is added later. On the CPU they
    do not.

    Args:
        workload, run, setup, emit, for_host, num_threads, with_tensors, with_calls: as for
            `autofit.predict.predictor.Predictor`.
        with_alike_ranks: whether traces also say which ranks need equal memory.
        kept: storage of traces, whose runner is `run`; None to keep nothing.

    Attributes:
        sources: digest of each of the user's files that the workload used, by path; None before the first
            trace.
    """

    def __init__(
        self,
        workload: WorkloadRef,
        run: Runner,
        *,
        setup: Setup = ALONE,
        emit: EventSink = ignore,
        for_host: bool = False,
        num_threads: int | None = None,
        with_tensors: bool = False,
        with_calls: bool = False,
        with_alike_ranks: bool = False,
        kept: KeptTraces | None = None,
    ) -> None:
        self._workload = workload
        self._run = run
        self._setup = setup
        self._emit = emit
        self._for_host = for_host
        self._num_threads = num_threads
        self._with_tensors = with_tensors
        self._with_calls = with_calls
        self._with_alike_ranks = with_alike_ranks
        self._kept = kept
        self._traces: dict[tuple[Knobs, int], Trace] = {}
        self._untraceable: dict[tuple[Knobs, int], WorkloadFailedError] = {}
        self._ahead: TracesAhead | None = None
        self._announced: dict[tuple[Knobs, int], bool] = {}  # whether the trace was kept then
        self.sources: dict[str, str] | None = None

    @property
    def follows_script(self) -> bool:
        """Whether the workload is a training script, rather than a model with batches."""
        return self._workload.script is not None

    def setting(self, knobs: Knobs, batch_size: int) -> Knobs:
        """Knob setting with which a step is traced, so that the trace can be used for `knobs`.

        Knobs that do not change the traced step have their defaults, so that settings share traces. If
        `knobs` accumulates gradients at any batch size, the result does so at batch size 1.

        Raises:
            UsageError: the batch size does not divide the global batch.
        """
        try:
            num_passes = knobs.num_passes(batch_size)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return traced_knobs(knobs, num_passes=num_passes, for_host=self._for_host)

    def trace(self, knobs: Knobs, batch_size: int) -> Trace:
        """Trace at a batch size, made by a worker process unless it is known.

        Raises:
            UsageError: there is no such batch size or mode.
            WorkloadFailedError: the workload cannot be traced.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {batch_size}")
        if batch_size > _LARGEST_BATCH:
            raise UsageError(f"batch_size must be at most {_LARGEST_BATCH:,}, got {batch_size:.3g}")
        script = self._workload.script
        if script is not None:
            why = script.why_not(knobs, self._setup)
            if why is not None:
                raise UsageError(why)
        key = (self.setting(knobs, batch_size), batch_size)
        if key in self._untraceable:
            raise self._untraceable[key]
        if key not in self._traces:
            spec = self._spec(*key)
            is_own = script is not None and script.keeps_batch
            stage = "tracing the script's own batch" if is_own else f"tracing batch {batch_size}"
            if not (self._announced[key] if key in self._announced else self._may_be_kept(spec)):
                self._emit(Progress(stage=stage))
            outcome = self._outcome(key, spec, CompilingProgress(stage, self._emit))
            if outcome.verdict not in (Verdict.LOST, Verdict.TIMEOUT):
                self.sources = {**(self.sources or {}), **outcome.sources}
            try:
                raise_if_failed(outcome)
            except WorkloadFailedError as error:
                self._untraceable[key] = error
                raise
            text = outcome.trace_json or ""
            try:
                self._traces[key] = Trace.from_json(text)
            except ValueError as error:
                raise DispatchError(
                    f"the trace of batch {batch_size} cannot be read ({error}): install the same autofit "
                    "wherever trials run"
                ) from error
        require_its_conv_algo(knobs, self._traces[key])
        return self._traces[key]

    def _outcome(self, key: tuple[Knobs, int], spec: TrialSpec, report: CompilingProgress) -> TrialOutcome:
        """Outcome of the trial that makes a trace, which may be running in the background already."""
        outcome = None if self._ahead is None else self._ahead.take(key, report)
        if outcome is not None:
            return outcome
        with reported_to(report):
            return self._run(spec)

    def known(self, knobs: Knobs, batch_size: int) -> Trace | None:
        """Trace at a batch size; None if it has not been made yet."""
        return self._traces.get((self.setting(knobs, batch_size), batch_size))

    def _spec(self, traced: Knobs, batch_size: int) -> TrialSpec:
        """Specification of the trial that makes a trace.

        Args:
            traced: knob setting to trace, from `setting`.

        Raises:
            UsageError: no such trial is possible.
        """
        try:
            return TrialSpec(
                workload=self._workload,
                batch_size=batch_size,
                probe=Probe.PREDICT,
                knobs=traced,
                setup=self._setup,
                architecture=HOST_ARCHITECTURE if self._for_host else DEFAULT_ARCHITECTURE,
                num_threads=self._num_threads,
                with_tensors=self._with_tensors,
                with_calls=self._with_calls,
                with_alike_ranks=self._with_alike_ranks,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error

    @contextmanager
    def tracing_ahead(self) -> Iterator[None]:
        """Context manager within which announced traces are made in background threads."""
        with TracesAhead(self._run) as ahead:
            self._ahead = ahead
            try:
                yield
            finally:
                self._ahead = None

    def expect(self, knobs: Knobs, batch_sizes: Iterable[int]) -> None:
        """Announces traces that are needed soon, so that they are made in the background.

        Without effect outside `tracing_ahead`, for scripts, and with a global batch.
        """
        if self._ahead is None or self.follows_script or knobs.global_batch is not None:
            return
        for batch_size in batch_sizes:
            with suppress(UsageError):  # raised again when the trace is requested
                key = self.setting(knobs, batch_size), batch_size
                if key not in self._traces:
                    spec = self._spec(*key)
                    self._announced.setdefault(key, self._may_be_kept(spec))
                    self._ahead.ask(key, spec)

    def _may_be_kept(self, spec: TrialSpec) -> bool:
        return self._kept is not None and self._kept.may_hold(spec)

    def own_batch_size(self, knobs: Knobs) -> int:
        """Batch size that a script sets itself, found by one trace.

        Raises:
            UsageError: the workload is no script.
            WorkloadFailedError: the script cannot be traced.
        """
        script = self._workload.script
        if script is None:
            raise UsageError("a model has no batch size of its own: give --batch-size")
        own = dataclasses.replace(self._workload, script=dataclasses.replace(script, keeps_batch=True))
        traces = self._like(own, self._setup)
        trace = traces.trace(knobs, 1)
        self.sources = traces.sources
        self._traces[self.setting(knobs, trace.batch_size), trace.batch_size] = trace
        return trace.batch_size

    def selecting_all(self) -> Traces:
        """Object that makes the traces of the workload with masks that select as much as possible."""
        return self._like(self._workload, dataclasses.replace(self._setup, nonzero_share=1.0))

    def of_rank(self, rank: int) -> Traces:
        """Object that makes the traces of another rank of the workload."""
        return self._like(self._workload, dataclasses.replace(self._setup, rank=rank))

    def among(self, setup: Setup) -> Traces:
        """Object that makes the traces of the workload in another setup (mode, ranks, kind of batches)."""
        return self._like(self._workload, setup)

    def _like(self, workload: WorkloadRef, setup: Setup) -> Traces:
        return Traces(
            workload,
            self._run,
            setup=setup,
            emit=self._emit,
            for_host=self._for_host,
            num_threads=self._num_threads,
            with_tensors=self._with_tensors,
            with_calls=self._with_calls,
            kept=self._kept,
        )

    def is_proved(self, knobs: Knobs, batch_size: int) -> bool:
        """Whether the curve of a knob setting is known, from earlier, to agree with a trace at a batch size.

        It is known too if the curve agreed with a trace at a larger size.
        """
        return self._kept is not None and self._kept.is_proved(
            self._spec(self.setting(knobs, batch_size), batch_size)
        )

    def prove(self, knobs: Knobs, batch_size: int) -> None:
        """Keeps that the curve of a knob setting agrees with a trace at a batch size."""
        if self._kept is not None:
            self._kept.prove(self._spec(self.setting(knobs, batch_size), batch_size), self.sources or {})

    @property
    def first(self) -> Trace:
        """The first trace that was made; at least one must have been made."""
        return next(iter(self._traces.values()))

    @property
    def any(self) -> Trace | None:
        """Any trace of the workload; None if none has been made yet."""
        return next(iter(self._traces.values()), None)

    @property
    def has_batch_kinds(self) -> bool:
        """Whether the traced workload makes separate typical and worst-case batches."""
        return any(trace.batch_kind is not None for trace in self._traces.values())

    @property
    def convolves(self) -> bool | None:
        """Whether any step traced so far has a convolution; None if there is no trace."""
        return any(trace.convolves for trace in self._traces.values()) if self._traces else None

    @property
    def num_samples(self) -> int | None:
        """Number of samples in a script's data set; None if it is not known from a trace."""
        said = [trace.versions.get("num_samples") for trace in self._traces.values()]
        return next((int(number) for number in said if number is not None), None)

    @property
    def is_one_sample(self) -> bool:
        """Whether the workload makes a single batch, whatever batch size it is asked for."""
        return any(trace.batch_count.source is BatchSource.ONE_SAMPLE for trace in self._traces.values())

    @property
    def own_conv_algo(self) -> str | None:
        """Convolution algorithm that a traced script selects itself; None if it keeps the default."""
        said = {trace.versions.get("own_conv_algo") for trace in self._traces.values()}
        return next((algo for algo in said if algo not in (None, Knobs().conv_algo)), None)
