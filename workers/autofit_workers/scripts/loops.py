"""Ends the loops that make a script's steps, once enough steps were seen.

    for epoch in range(90):              one iteration has made steps: continues
        for batch in train_loader:       three iterations have: ends
            …; optimizer.step()
        evaluate(model, test_loader)     runs
        torch.save(…)                    runs

A loop ends when two of its iterations have made steps, the inner loops first; a loop that was ended before
ends at its first step. A loop of a generator that gives batches goes on if the script asks for them by
`next`, which would raise an error. Loops of libraries are not seen, but the data loaders that they iterate
over are. A loader also ends once three of its batches in an evaluation had equal shapes and left live memory
unchanged: further batches would show nothing new.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.utils.data import dataloader

from autofit_workers.pytorch.data_loading import DataLoaderIterator
from autofit_workers.scripts.kept import KeptIn
from autofit_workers.workload.workload import tensors_of

_NUM_ROUNDS = 2  # iterations with steps, after which a loop ends
_NUM_ALIKE = 3  # iterations of an evaluation, after which it shows nothing new
_MOST_MORE_STEPS = 16  # steps that a script may make after its loops were ended

_Function = TypeVar("_Function")


@dataclass(eq=False, slots=True)
class _Loop:
    """Running `for` or `while` loop of a script, or data loader, with counts of iterations and steps.

    Attributes:
        site: key of the place in the code, equal in all epochs; for a data loader its batch sampler.
        length: number of iterations of the loop; None if unknown.
        num_rounds: number of iterations that began.
        num_stepped: number of iterations in which the script made at least one step.
        num_steps: number of steps in all iterations.
        last_stepped: number of the last iteration in which the script made a step.
        is_ended: whether autofit ends the loop after this iteration.
        shapes: shapes of the last batches of a loader.
        lives: bytes of all live allocations after each of the last iterations.
    """

    site: Hashable
    length: int | None = None
    num_rounds: int = 0
    num_stepped: int = 0
    num_steps: int = 0
    last_stepped: int = 0
    is_ended: bool = False
    shapes: deque[list[tuple[int, ...]]] = field(default_factory=lambda: deque(maxlen=_NUM_ALIKE))
    lives: deque[int | None] = field(default_factory=lambda: deque(maxlen=_NUM_ALIKE))

    def repeats_itself(self, live_bytes: int | None) -> bool:
        """Whether the last iterations evaluated batches of equal shapes and left the live memory unchanged.

        Args:
            live_bytes: bytes of all live allocations; None if the script does not evaluate.
        """
        self.lives.append(live_bytes)
        is_alike = len(self.lives) == _NUM_ALIKE and len({*self.lives}) == 1 and live_bytes is not None
        return is_alike and all(shapes == self.shapes[0] for shapes in self.shapes)

    @property
    def has_run_out(self) -> bool:
        """Whether the loop has begun its own last iteration, without being ended by autofit."""
        return not self.is_ended and self.length is not None and self.num_rounds >= self.length

    def stepped(self, *, counts: bool) -> None:
        self.num_steps += counts
        self.num_stepped += self.last_stepped != self.num_rounds
        self.last_stepped = self.num_rounds


class _Running(threading.local):
    """Loops of the script and data loaders that run in the current thread.

    Attributes:
        loops: loops of the script's code, the outermost first.
        outer_loader: followed data loader that is taking a batch from another.
    """

    def __init__(self) -> None:
        self.loops: list[_Loop] = []
        self.outer_loader: _Loop | None = None


class Loops:
    """Follows the loops of a script, and ends those that make its steps.

    Args:
        live_bytes: returns the bytes of all live allocations while the script evaluates; else None.

    Attributes:
        kept: record of the lines that keep values, filled by the script's code.
    """

    def __init__(self, kept: KeptIn, live_bytes: Callable[[], int | None]) -> None:
        self.kept = kept
        self._live_bytes = live_bytes
        self._running = _Running()
        self._loaders: weakref.WeakKeyDictionary[Any, _Loop] = weakref.WeakKeyDictionary()  # by iterator
        self._given: list[_Loop] = []  # loaders that gave a batch since the last step
        self._ended: dict[Hashable, _Loop] = {}  # by site
        self._shown_last: set[Hashable] = set()
        self._num_more_steps = 0
        self._nest: list[_Loop] = []
        self._steps_per_round = 1.0
        self._told: int | None = None
        self._unreached: dict[Hashable, str] = {}
        self._followed: set[type] = set()  # classes of data loaders

    @property
    def are_ended(self) -> bool:
        """Whether any loop was ended because enough steps were seen."""
        return bool(self._ended)

    @property
    def num_run_steps(self) -> int | None:
        """Number of steps of a whole run of the script; None if its loops' lengths are unknown."""
        if self._told is not None or not self._nest:
            return self._told
        *outer, last = self._nest
        lengths = [last.length, *(loop.num_stepped if loop.has_run_out else loop.length for loop in outer)]
        if None in lengths:
            return None
        return max(round(prod(filter(None, lengths)) * self._steps_per_round), last.num_steps)

    def take_num_run_steps(self, number: int | None) -> None:
        """Records how many steps a library's loop would make in a whole run; later calls have no effect."""
        self._told = self._told or number

    @property
    def phases_not_reached(self) -> set[str]:
        """Names of phases other than training, such as evaluation, whose code exists but did not run."""
        return set(self._unreached.values())

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Context manager that counts data loaders' batches; a loader that was ended gives no more."""
        kind = DataLoaderIterator
        loader: Any = dataloader.DataLoader
        advance, initialize = kind.__next__, loader.__init__

        def advanced(iterator: Any) -> Any:
            """Next batch of a data loader, counted; raises `StopIteration` if the loader was ended."""
            outer = self._running.outer_loader
            if outer is not None:
                if outer.is_ended:
                    raise StopIteration
                return advance(iterator)
            loop = self._loaders.get(iterator)
            if loop is None:
                loop = _Loop(iterator._index_sampler, _length(iterator))  # noqa: SLF001
                self._loaders[iterator] = loop
            if self._is_over(loop):
                raise StopIteration
            batch = advance(iterator)
            self._note_batch(loop, batch)
            return batch

        @functools.wraps(initialize)  # Lightning reads the names of its parameters
        def initialized(each: Any, *args: Any, **kwargs: Any) -> None:
            self._follow_generator(type(each))
            initialize(each, *args, **kwargs)

        kind.__next__ = kind.next = advanced
        loader.__init__ = initialized
        try:
            yield
        finally:
            kind.__next__ = kind.next = advance
            loader.__init__ = initialize

    def _is_over(self, loop: _Loop) -> bool:
        return loop.is_ended or loop.repeats_itself(self._live_bytes())

    def _note_batch(self, loop: _Loop, batch: Any) -> None:
        loop.num_rounds += 1
        loop.shapes.append([tuple(tensor.shape) for tensor in tensors_of(batch)])
        if loop not in self._given:
            self._given.append(loop)

    def _follow_generator(self, kind: Any) -> None:
        """Counts batches of a data loader class whose `__iter__` is a generator; each run counts as a loop.

        The iterator inside such a generator may continue from epoch to epoch. The generator ends when
        that iterator ends: some run more code then, and some call `next`, which must not end a generator.
        """
        owner = next(each for each in kind.__mro__ if "__iter__" in vars(each))  # its subclasses share it
        iterate = owner.__iter__
        if owner in self._followed or not inspect.isgeneratorfunction(iterate):
            return
        self._followed.add(owner)

        @functools.wraps(iterate)
        def iterated(each: Any) -> Iterator[Any]:
            if self._running.outer_loader is not None:  # the loop is another generator's
                yield from iterate(each)
                return
            batches, loop = iterate(each), _Loop(each, _length(each))
            while True:
                loop.is_ended = is_over = self._is_over(loop)
                self._running.outer_loader = loop
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except RuntimeError as error:
                    if is_over and isinstance(error.__cause__, StopIteration):
                        return
                    raise
                finally:
                    self._running.outer_loader = None
                if not is_over:
                    self._note_batch(loop, batch)
                yield batch

        owner.__iter__ = iterated

    def each(self, values: Iterable[Any], site: Hashable, decides: bool) -> Iterable[Any]:
        """Values of a `for` loop of the script, until autofit ends the loop; all of them in compiled code.

        Args:
            values: iterable of the loop.
            site: key of the place of the loop in the code.
            decides: whether an `if` in the loop uses the loop's variables, as code for the last step does.
                The last iteration is then run as well, once for each `site`.
        """
        return values if torch.compiler.is_compiling() else self._each(values, site, decides)

    def _each(self, values: Iterable[Any], site: Hashable, decides: bool) -> Iterator[Any]:
        loop = _Loop(site, _length(values))
        running = self._running.loops
        running.append(loop)
        value = None
        try:
            for value in values:
                loop.num_rounds += 1
                yield value
                if loop.is_ended and not _is_asked_for_next(sys._getframe(1)):  # noqa: SLF001
                    break
            if loop.is_ended and decides and site not in self._shown_last:
                self._shown_last.add(site)
                yield from _last(values, loop, value)
        finally:
            if loop in running:
                del running[running.index(loop) :]

    def goes_on(self, site: Hashable) -> bool:
        """Whether a `while` loop may begin another iteration, if its condition holds."""
        if torch.compiler.is_compiling():
            return True
        running = self._running.loops
        loop = next((each for each in reversed(running) if each.site == site), None)
        if loop is None:
            running.append(loop := _Loop(site))
        elif loop.is_ended and not _is_asked_for_next(sys._getframe(1)):  # noqa: SLF001
            del running[running.index(loop) :]
            return False
        loop.num_rounds += 1
        return True

    def may_reach(self, site: Hashable, phase: str) -> None:
        """Records that the script has code for a phase other than training, such as evaluation.

        Args:
            site: place of the code that would begin the phase.
            phase: name of the phase, for messages.
        """
        self._unreached[site] = phase

    def reached(self, site: Hashable, function: _Function) -> _Function:
        """Records that the code at `site`, which begins a phase, runs; returns `function` unchanged.

        The call is inserted into the script's code around the function that begins the phase.
        """
        if not torch.compiler.is_compiling():
            self._unreached.pop(site, None)
        return function

    def stepped(self, *, counts: bool, is_enough: bool) -> bool:
        """Counts a finished step in the running loops; ends these loops once enough steps were made.

        Args:
            counts: whether the step adds to the script's number of steps; with several optimizers only the
                steps of the one that makes the most do.
            is_enough: whether enough steps were seen, so the loops around this step end.

        Returns:
            False if the script itself has to be ended, because its loops cannot be.
        """
        for loop in (*self._running.loops, *self._given):
            loop.stepped(counts=counts)
        goes_on = not is_enough or self._end()
        self._given.clear()
        return goes_on

    def _end(self) -> bool:
        """Ends the loops that make steps; returns False if the script itself has to be ended."""
        if not self._ended:
            self._nest = self._nest_of_steps()
            if self._nest:
                self._steps_per_round = self._nest[-1].num_steps / self._nest[-1].num_rounds
        self._num_more_steps += 1
        inner = [loop for loop in self._running.loops if self._is_to_end(loop)]
        through = [
            loop
            for loop in self._given
            if loop.site in self._ended or (not inner and (loop.has_run_out or self._is_to_end(loop)))
        ]
        # Batches that a library had fetched before its loader was ended make steps as well.
        is_draining = bool(self._ended) and not self._given and not inner
        goes_on = bool(inner) or any(loop.site not in self._ended for loop in through) or is_draining
        for loop in (*inner, *through):
            loop.is_ended = True
            self._ended[loop.site] = loop
        return goes_on and self._num_more_steps <= _MOST_MORE_STEPS

    def _is_to_end(self, loop: _Loop) -> bool:
        return not loop.is_ended and (loop.num_stepped >= _NUM_ROUNDS or loop.site in self._ended)

    def _nest_of_steps(self) -> list[_Loop]:
        """Nested loops around the script's steps, outermost first.

        The innermost is the first in which several iterations made steps; loops within it belong to one step.
        """
        nest: list[_Loop] = []
        for loop in self._running.loops:
            if loop.num_steps:
                nest.append(loop)
            if loop.num_stepped >= _NUM_ROUNDS:
                break
        loader = max(self._given, key=lambda loop: loop.num_rounds, default=None)
        if not nest or nest[-1].num_stepped < _NUM_ROUNDS:
            return nest if loader is None else [*nest, loader]
        if nest[-1].length is None and loader is not None:
            nest[-1].length = loader.length
        return nest


def _is_asked_for_next(frame: FrameType | None) -> bool:
    """Whether a frame is a generator's that a call resumed, such as `next`, and not a `for` loop."""
    if frame is None or not frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_back is None:
        return False
    asking = frame.f_back
    return "CALL" in dis.opname[asking.f_code.co_code[asking.f_lasti]]


def _length(values: Any) -> int | None:
    """Number of values of an iterable; None if not known."""
    if isinstance(values, enumerate | zip):
        inner = values.__reduce__()[1]
        lengths = map(_length, inner[:1] if isinstance(values, enumerate) else inner)
        return min((length for length in lengths if length is not None), default=None)
    try:
        return operator.length_hint(values) or None
    except (TypeError, NotImplementedError):  # a data set without a length
        return None


def _last(values: Any, loop: _Loop, value: Any) -> Iterator[Any]:
    """Yields the value of an ended loop's last iteration; nothing if it is unknown or was already used.

    It is known for `range` and `enumerate`, also within a progress bar.

    Args:
        values: iterable of the loop.
        loop: the loop, with its length and number of iterations so far.
        value: value of the iteration after which the loop was ended.
    """
    inner = getattr(values, "iterable", values)  # the iterable of a progress bar
    if loop.length is None or loop.num_rounds >= loop.length:
        return
    if isinstance(inner, range):
        yield inner[-1]
    elif isinstance(inner, enumerate):
        yield value[0] + loop.length - loop.num_rounds, value[1]
