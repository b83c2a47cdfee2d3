"""Follows a script from outside: its optimizers' steps, its backward passes, what its models are given.

    model call ──▶ forward   engine ──▶ backward   step ──▶ optimizer   its end ──▶ input of the next

A script's step is from one end of `Optimizer.step` to the next. Where there are several optimizers,
it is ended once each of them has made enough steps, or one of them many: some never step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import torch
from torch.optim import optimizer as optimizers

from workers.errors import InvalidTrialError
from workers.workload.workload import tensors_of

_PATIENCE = 4  # an optimizer may make so many times the steps that are waited for


class ScriptEnd(BaseException):
    """Ends a script once enough is known; no `Exception`, so that few scripts catch it."""


class Follower(Protocol):
    """Who is told what a script does."""

    def forward(self, module: torch.nn.Module) -> None:
        """A module is called that no other one calls."""

    def backward(self) -> None:
        """The engine begins."""

    def after_backward(self) -> None:
        """The engine is done."""

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """A step begins; a closure may still run forward and backward in it."""

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """A step has ended."""

    def ended(self) -> None:
        """Enough steps were made: what the script does from here on is no part of it."""


class StepWatch:
    """Counts a script's steps and ends it after some.

    Args:
        batch_size: what one of the tensors that the model is given has to have as a dimension.
        num_steps: after so many steps the script is ended.
        follower: is told what happens.
        follows_modules: whether `follower` is told of every forward pass; else modules are looked at
            until the batch is seen.

    Attributes:
        num_steps: steps made so far, of the optimizer that made most.
        has_ended: whether the script was ended.
        refusal: why it was, where it did what cannot be followed.
        on_end: called once, when it is.
    """

    def __init__(
        self, name: str, batch_size: int, num_steps: int, follower: Follower, *, follows_modules: bool
    ) -> None:
        self.num_steps = 0
        self.has_ended = False
        self.refusal: Exception | None = None
        self.on_end: Callable[[], None] = lambda: None
        self._name = name
        self._batch_size = batch_size
        self._wanted = num_steps
        self._follower = follower
        self._follows_modules = follows_modules
        self._counts: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._depth = 0
        self._shapes: list[tuple[int, ...]] = []  # of what models were given, until the batch was seen
        self._has_seen_batch = False
        self._module_hooks: list[Any] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follows whatever runs in this process meanwhile."""
        hooks: Any = torch.nn.modules.module
        self._module_hooks = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        handles = [
            optimizers.register_optimizer_step_pre_hook(self._stepping),
            optimizers.register_optimizer_step_post_hook(self._stepped),
        ]
        try:
            with self._optimizers_noted(), self._backward_followed():
                yield
        finally:
            for handle in (*handles, *self._module_hooks):
                handle.remove()

    @contextmanager
    def _optimizers_noted(self) -> Iterator[None]:
        kind: Any = torch.optim.Optimizer
        initialize = kind.__init__

        def noted(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            initialize(optimizer, *args, **kwargs)
            self._counts.setdefault(optimizer, 0)

        kind.__init__ = noted
        try:
            yield
        finally:
            kind.__init__ = initialize

    @contextmanager
    def _backward_followed(self) -> Iterator[None]:
        engine: Any = torch.autograd
        run_backward = engine._engine_run_backward  # noqa: SLF001 - no public name

        def followed(*args: Any, **kwargs: Any) -> Any:
            self._follower.backward()
            try:
                return run_backward(*args, **kwargs)
            finally:
                self._follower.after_backward()

        engine._engine_run_backward = followed  # noqa: SLF001
        try:
            yield
        finally:
            engine._engine_run_backward = run_backward  # noqa: SLF001

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if self._follows_modules:
            self._follower.forward(module)
        if not self._has_seen_batch and torch.is_grad_enabled():
            self._look_for_batch((args, _keywords_of_call()))

    def _leave(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        self._depth -= 1

    def _look_for_batch(self, given: Any) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors_of(given)]
        self._shapes += shapes
        # Flattened with another dimension, the batch is a divisor of what is seen.
        self._has_seen_batch = any(
            size and size % self._batch_size == 0 for shape in shapes for size in shape
        )
        if self._has_seen_batch and not self._follows_modules:
            for handle in self._module_hooks:
                handle.remove()

    def _stepping(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._follower.stepping(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.has_ended:  # something caught the end
            raise ScriptEnd
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.num_steps = max(self._counts.values())
        self._follower.stepped(optimizer)
        if self.num_steps == 1 and self._shapes and not self._has_seen_batch:
            self.refuse(InvalidTrialError(self._without_batch()))
        if min(self._counts.values()) >= self._wanted or self.num_steps >= _PATIENCE * self._wanted:
            self._end()

    def refuse(self, error: Exception) -> NoReturn:
        """Ends the script because it did what cannot be followed."""
        if not self.has_ended:
            self.refusal = error
        self._end()

    def _end(self) -> NoReturn:
        if not self.has_ended:
            self.has_ended = True
            self._follower.ended()
            self.on_end()
        raise ScriptEnd

    def _without_batch(self) -> str:
        shapes = list(dict.fromkeys(self._shapes))
        shown = ", ".join(map(str, shapes[:4])) + (", …" if len(shapes) > 4 else "")
        return (
            f"the model of {self._name} got no input with {self._batch_size} samples, only {shown}: name the "
            "argument or variable that sets its batch size (--batch-arg, --batch-env), or end the search "
            "there with --max-batch if its data set has no more samples"
        )


def _keywords_of_call() -> Any:
    """The keyword arguments of the module call that is at a global hook, which is not given them."""
    frame = sys._getframe(2)  # noqa: SLF001 - `Module._call_impl`'s
    return frame.f_locals.get("kwargs")
