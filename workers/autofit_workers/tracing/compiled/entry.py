"""`torch.compile` for programs that are traced: compiles for the fake GPU, or leaves code eager.

PyTorch's own `torch.compile` compiles. Where its compiler fails, the graph runs as eager code and a note says
so, since a prediction must not fail where the real step runs.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch

from autofit_workers.process.heart import Report, unheard
from autofit_workers.pytorch.compiling import DYNAMO_MODULE, torch_compile
from autofit_workers.pytorch.dispatch import without_function_modes, without_global_hooks
from autofit_workers.spec.protocol import COMPILING, PREDICTION, Heartbeat
from autofit_workers.tracing import followed_release
from autofit_workers.tracing.fake import dynamo, flex_attention
from autofit_workers.tracing.fake.running import MODES
from autofit_workers.tracing.recording.call_sites import is_users_own

_OF_INSTALLED = (
    f"torch.compile is that of PyTorch {torch.__version__}, the installed one, whatever --torch says"
)
_CACHES = "TORCHINDUCTOR_CACHE_DIR"
_MAKES_STATES = "_init_group"  # method of PyTorch's optimizers, which Dynamo calls and does not follow
_TAKES_LIST = "_boxed_call"  # AOTAutograd's mark of functions that take all arguments as one list
# Warnings of PyTorch's about what only a prediction does, and about speed.
_WARNINGS = (
    r"Using `torch.compile\(module\)` when there are global hooks",
    "Accessing the data pointer of FakeTensor",
    "TensorFloat32 tensor cores",
)
MOST_SECONDS = 60.0  # of lowering, after which the rest of a program runs as eager code
_AUTOTUNED = (
    "max-autotune is followed with the products of cuBLAS and the convolutions of cuDNN; memory of its "
    "benchmarks counts in the first step"
)


class _LateError(Exception):
    """Compiling takes longer than a prediction waits for it."""


class _Lowering:
    """State of the compilations in this process.

    Attributes:
        notes: notes for the user.
        seconds: time that was spent compiling.
        num_graphs: number of compilations that began.
        num_eager_graphs: number of graphs that were left eager.
        report: called when a compilation begins, and when it has ended.
    """

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        self.seconds = 0.0
        self.num_graphs = 0
        self.num_eager_graphs = 0
        self.report: Report = unheard
        self._began: float | None = None
        self._depth = 0
        self._unobserved: Any = None

    def begin(self, _what: object = None) -> None:
        """Stops recording while the compiler runs: it allocates nothing on the GPU."""
        self._depth += 1
        if self._depth == 1:
            self._began = time.monotonic()
            self.num_graphs += 1
            self.report(Heartbeat(phase=f"{COMPILING} {self.num_graphs}"))
            if MODES:
                self._unobserved = MODES[-1].unobserved()
                self._unobserved.__enter__()

    def end(self, _what: object = None) -> None:
        """Goes on recording."""
        self._depth -= 1
        if self._depth == 0 and self._began is not None:
            self.seconds += time.monotonic() - self._began
            self._began = None
            self.report(Heartbeat(phase=PREDICTION))
            if self._unobserved is not None:
                unobserved, self._unobserved = self._unobserved, None
                unobserved.__exit__(None, None, None)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Context in which tensors are made on the fake GPU, and recorded, while the compiler runs."""
        if self._unobserved is None or not MODES:
            yield
            return
        unobserved, self._unobserved = self._unobserved, None
        unobserved.__exit__(None, None, None)
        mode = MODES[-1]
        try:
            with mode:
                yield
        finally:
            self._unobserved = mode.unobserved()
            self._unobserved.__enter__()

    def seconds_so_far(self) -> float:
        began = self._began
        return self.seconds + (0.0 if began is None else time.monotonic() - began)

    def require_time(self) -> None:
        """Raises `_LateError` once compiling has taken longer than a prediction waits for it."""
        if self.seconds_so_far() > MOST_SECONDS:
            raise _LateError(f"it took more than {MOST_SECONDS:.0f} s")


_lowering = _Lowering()
_forgets: list[Callable[[], None]] = []  # what forgets compiled code, once PyTorch's compiler is loaded


def install() -> None:
    """Replaces `torch.compile` in this process, for good."""
    package: Any = torch
    package.compile = compiled
    module: Any = torch.nn.Module
    module.compile = _compile_in_place


def report_to(report: Report) -> None:
    """Has beginnings and ends of compilations reported from now on, as heartbeats of this process."""
    _lowering.report = report


def begin_program() -> None:
    """Forgets what an earlier script or workload in this process compiled."""
    _lowering.notes.clear()
    _lowering.seconds = 0.0
    _lowering.num_graphs = 0
    _lowering.num_eager_graphs = 0
    for forget in _forgets:
        forget()


def notes() -> tuple[str, ...]:
    """Notes for the user about what was compiled or left eager, a sentence each."""
    if _lowering.seconds and followed_release.is_another():
        return (*_lowering.notes, _OF_INSTALLED)
    return tuple(_lowering.notes)


def seconds() -> float:
    """Time in which PyTorch's compiler ran in this program so far."""
    return _lowering.seconds_so_far()


def num_eager_graphs() -> int:
    """Number of graphs in this program that were left eager, as they could not be compiled."""
    return _lowering.num_eager_graphs


def compiled(model: Any = None, **options: Any) -> Any:
    """Replacement for `torch.compile`.

    Functions that a library compiles stay eager, as what they need is known otherwise: `flex_attention` and
    steps of optimizers.
    """
    if model is None:
        return functools.partial(compiled, **options)
    if flex_attention.is_followed_as_compiled(model):
        return flex_attention.compiled(model)
    if isinstance(model, torch.nn.Module):
        return compiled_model(model, **options)
    if not is_users_own(sys._getframe(1).f_code):
        return dynamo.not_compiled(model)
    return _at_first_call(model, options)


def compiled_model(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """Model as `torch.compile` returns it; the model itself if PyTorch's compiler cannot be used."""
    if not _install():
        return model
    made: Any = torch_compile(model, **options)
    made.forward = _without_modes(made.forward, model.__call__)
    return cast("torch.nn.Module", made)


def _compile_in_place(module: torch.nn.Module, *args: Any, **options: Any) -> None:
    """Replacement for `Module.compile`, which makes later calls of the module run compiled."""
    if _install():
        module._compiled_call_impl = _without_modes(
            torch_compile(module._call_impl, *args, **options), module._call_impl
        )


def _at_first_call(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Function that is compiled when it is first called, as PyTorch's compiler takes seconds to import."""
    made: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # in the graph of the code that calls it
            return function(*args, **kwargs)
        if not made:
            is_possible = _install()
            made.append(
                _without_modes(torch_compile(function, **options), function) if is_possible else function
            )
        return made[0](*args, **kwargs)

    return called


def _without_modes(compiled_code: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrapper that calls compiled code without the modes and hooks by which code is followed.

    Dynamo would follow them too, and compile what they do.

    Args:
        compiled_code: what `torch.compile` returned.
        plain: the same, uncompiled, for calls within other code that is compiled.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        with without_function_modes(), without_global_hooks():
            return compiled_code(*args, **kwargs)

    return called


@functools.cache
def _install() -> bool:
    """Loads PyTorch's compiler and makes it run for the fake GPU; returns whether it does."""
    try:
        dynamo.give_way()
        if not Path(os.environ.get(_CACHES, "")).is_dir():
            # PyTorch makes the folder of its caches, whether it writes to it or not; this one is there.
            os.environ[_CACHES] = tempfile.gettempdir()
        from autofit_workers.pytorch import inductor
        from autofit_workers.tracing.compiled import autotuning, cuda_graphs, lowering

        lowering.install()
        autotuning.install(_lowering.interrupted)
    except (AttributeError, ImportError) as error:
        _note_eager(error)
        return False

    def follow_lowering() -> None:
        inductor.callback.on_compile_start(_lowering.begin)
        inductor.callback.on_compile_end(_lowering.end)

    def forget() -> None:
        inductor.dynamo_forgets()
        cuda_graphs.forget()
        autotuning.forget()
        follow_lowering()  # PyTorch forgets this too

    follow_lowering()
    _forgets.append(forget)
    lowered = inductor.LOWER_NODE.get()

    def lowered_in_time(graph: Any, node: Any) -> Any:
        _lowering.require_time()
        return lowered(graph, node)

    inductor.LOWER_NODE.replace(lowered_in_time)
    call = inductor.CALL_OF_OPTIMIZER.get()

    def called(variable: Any, tx: Any, name: str, *args: Any) -> Any:
        with _lowering.interrupted() if name == _MAKES_STATES else nullcontext():
            return call(variable, tx, name, *args)

    inductor.CALL_OF_OPTIMIZER.replace(called)
    whole, inner = inductor.WHOLE_COMPILE.get(), inductor.INNER_COMPILE.get()
    inductor.WHOLE_COMPILE.replace(_or_eager(whole, functools.partial(_inner_or_eager, inner)))
    for about in _WARNINGS:
        warnings.filterwarnings("ignore", message=about)
    logging.getLogger(f"{DYNAMO_MODULE}.convert_frame").addFilter(_note_suppressed)
    config: Any = inductor.dynamo_config
    config.suppress_errors = True
    return True


def _or_eager(whole: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """Wrapper of Inductor's entry, which returns the eager graph if it cannot be compiled."""
    from autofit_workers.pytorch import inductor

    def compiled_or_eager(model: Any, inputs: Any, inner_compile: Any = inner, **options: Any) -> Any:
        eager = _copied(model)  # the compiler changes the graph that it is given
        patches = options.get("config_patches") or {}
        options["config_patches"] = {**patches, **_followed(patches)} or None
        try:
            _lowering.require_time()
            return whole(model, inputs, inner_compile, **options)
        except inductor.RestartAnalysis:
            raise  # no failure: Dynamo follows the function once more
        except Exception as error:  # noqa: BLE001 - whatever fails in the compiler, the step itself may run
            _note_eager(error)
            return eager

    return compiled_or_eager


def _followed(patches: dict[str, Any]) -> dict[str, Any]:
    """Options besides those of `torch.compile`, for what cannot be followed as it is, which is noted.

    PyTorch's entry calls itself within the options that it is given, and must not be given them again.
    """
    from autofit_workers.tracing.compiled import autotuning

    if not autotuning.is_asked_for(patches):
        return {}
    _lowering.notes[_AUTOTUNED] = None
    return {} if autotuning.has_choices() else autotuning.CHOICES


def _inner_or_eager(inner: Callable[..., Any], graph: Any, inputs: Any, *args: Any, **options: Any) -> Any:
    """Compiles one graph of AOTAutograd's; a backward graph that cannot be compiled runs as it is."""
    if not options.get("is_backward"):
        return inner(graph, inputs, *args, **options)
    eager = _copied(graph)
    try:
        return inner(graph, inputs, *args, **options)
    except Exception as error:  # noqa: BLE001 - as in `_or_eager`
        _note_eager(error)

        def run(arguments: list[Any]) -> Any:
            given = list(arguments)
            arguments.clear()
            return eager(*given)

        setattr(run, _TAKES_LIST, True)
        return run


def _copied(graph: Any) -> Any:
    return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))


def _note_eager(error: BaseException) -> None:
    _lowering.num_eager_graphs += 1
    reason = str(error).strip().split("\n", maxsplit=1)[0][:200]
    _lowering.notes[
        "a graph of torch.compile is followed as eager code, so that the range is wider: PyTorch's compiler "
        f"did not lower it ({reason})"
    ] = None


def _note_suppressed(record: logging.LogRecord) -> bool:
    """Filter of Dynamo's log that turns its warning about code left eager into a note."""
    if record.levelno != logging.WARNING or record.exc_info is None:
        return True
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        _note_eager(error)
    return False
