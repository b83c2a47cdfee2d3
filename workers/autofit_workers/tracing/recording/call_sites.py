"""Python frames and source lines that called an operator, without autofit's own frames."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import torch

_PACKAGES = f"{Path(torch.__file__).parents[1]}/"
_TORCH = f"{Path(torch.__file__).parent}/"
_STDLIB = f"{sysconfig.get_path('stdlib')}/"
_WORKERS = f"{Path(__file__).parents[2]}/"
_MODELS = f"{_WORKERS}workload/models/"
_TRACING = f"{Path(__file__).parents[1]}/"
_STEP = f"{_TRACING}probe.py"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_GENERATED = ("<frozen", "<string>", "<eval_with_key>")
_ENGINE = f"{_TORCH}autograd/graph.py"
_HANDS_ON = (f"{_TORCH}nn/modules/module.py", f"{_TORCH}overrides.py")
# Code that runs between an operator's call and the recorder.
_DISPATCH = (
    _TRACING,
    *(f"{_TORCH}{part}" for part in ("_compile.py", "_dynamo/", "_subclasses/", "_ops.py")),
    f"{_TORCH}utils/_python_dispatch.py",
    f"{_TORCH}utils/_stats.py",
)


def is_users(code: CodeType) -> bool:
    """Whether code is the user's or a built-in model's, and not PyTorch's or autofit's."""
    return is_users_path(code.co_filename)


def is_users_own(code: CodeType) -> bool:
    """Whether code is the user's and no installed library's."""
    return is_users(code) and not any(part in code.co_filename for part in _INSTALLED)


@functools.cache
def is_users_path(path: str) -> bool:
    """Whether a file's code is the user's or a built-in model's."""
    return path.startswith(_MODELS) or not path.startswith((_TORCH, _WORKERS, *_GENERATED))


def user_source(frame: FrameType | None) -> str:
    """Innermost line of the user's code on the stack of `frame`, as `file:line:function`; empty if none."""
    found = user_frame(frame)
    return "" if found is None else _line(found, found.f_code.co_filename)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Innermost frame of the user's code on the stack of `frame`; None if there is none."""
    while frame is not None and not is_users_path(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the frames that led to an operator, innermost first, without those of the dispatch to autofit.

    They include autofit's probe, whose loop over steps takes the place of a training script's.
    """
    while frame is not None:
        if not _passes_on(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@functools.cache
def _passes_on(path: str) -> bool:
    return path != _STEP and path.startswith(_DISPATCH)


def called_by_the_engine(frame: FrameType | None) -> bool:
    """Whether the autograd engine, and not a Python function, called the operator of `frame`."""
    return is_engine(next(callers(frame), None))


def is_engine(frame: FrameType | None) -> bool:
    """Whether a frame is PyTorch's call into the autograd engine; False for None."""
    return frame is not None and frame.f_code.co_filename == _ENGINE


def hands_on(frame: FrameType) -> bool:
    """Whether a frame is of a PyTorch function that returns its callee's result: `Module.__call__`, …."""
    return frame.f_code.co_filename in _HANDS_ON


class Stacks:
    """Makes call stacks: tuples of lines `file:line:function`, outermost first, without autofit's own.

    Paths of PyTorch and of the standard library are relative, such as `torch/nn/functional.py`; others are
    absolute or begin with `./`.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[CodeType, int], str | None] = {}
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, frame: FrameType | None) -> tuple[str, ...]:
        """Call stack that ends in `frame`; equal stacks are returned as one object, which saves memory."""
        lines = [line for each in callers(frame) if (line := self._line(each)) is not None]
        stack = tuple(reversed(lines))
        return self._known.setdefault(stack, stack)

    def _line(self, frame: FrameType) -> str | None:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._lines:
            path = _shown(frame.f_code.co_filename)
            self._lines[key] = None if path is None else _line(frame, path)
        return self._lines[key]


def _shown(path: str) -> str | None:
    if path.startswith(_MODELS):
        return path
    if path.startswith((_WORKERS, *_GENERATED)):
        return None
    if path.startswith(_TORCH):
        return path.removeprefix(_PACKAGES)
    inside = path.removeprefix(_STDLIB)
    if inside != path and not inside.startswith(("site-packages/", "dist-packages/")):
        return inside
    return path if path.startswith(("/", "<")) else f"./{path}"


def _line(frame: FrameType, path: str) -> str:
    return f"{path}:{frame.f_lineno}:{frame.f_code.co_name}"
