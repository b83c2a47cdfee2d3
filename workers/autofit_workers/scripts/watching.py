"""Observes a script's optimizer steps, backward passes and model inputs, through global hooks.

    model call ──▶ forward   engine ──▶ backward   step ──▶ optimizer   its end ──▶ input of the next

A step lasts from one end of `Optimizer.step` to the next. A script without an optimizer updates its
parameters itself, and each backward pass counts as a step; without backward passes, each
forward pass does. With several optimizers, the script ends once each of them has made enough
steps, or one of them many, as some never step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.optim import optimizer as optimizers

from autofit_workers.pytorch.autograd import RUN_BACKWARD
from autofit_workers.scripts.batches.size import Batches, Pass
from autofit_workers.scripts.follower import Follower, StepKind
from autofit_workers.scripts.loops import Loops

_PATIENCE = 4  # times the requested steps that one optimizer may make
ENOUGH_STEPS = 2  # whole steps; errors after them do not invalidate the answer
_MOST_BACKWARDS, _MOST_FORWARDS = 256, 256  # of a script that makes no step, or no backward pass


class ScriptEnd(BaseException):
    """Ends a script once enough steps were seen; not an `Exception`, so that few scripts catch it."""


class StepWatch:
    """Counts a script's steps and ends the script after enough of them.

    Args:
        batches: finds the batch size from the inputs of the models.
        num_steps: number of steps after which the script is ended.
        follower: observer with a method for each event of the training.
        follows_modules: whether the follower is called for every forward pass; else modules are watched
            only until the batch size is found.
        loops: loops of the script. They are ended after `num_steps` steps, and the script goes on with the
            code after them. None to end the script itself.

    Attributes:
        num_steps: number of steps made so far, by the optimizer that made the most.
        has_ended: whether the script was ended.
        refusal: error for which the script was ended, if it does something that cannot be predicted.
        on_end: called once, when the script is ended.
        on_loops_ended: called once, when its loops are ended.
        seconds_of_compiler: returns how long PyTorch's compiler has run, which is not the script's own time.
        is_late: whether to end the script at its next forward pass or step.
        is_to_end: whether the script ended by itself.
        notes: sentences for the user.
    """

    def __init__(
        self,
        batches: Batches,
        num_steps: int,
        follower: Follower,
        *,
        follows_modules: bool,
        loops: Loops | None = None,
    ) -> None:
        self.has_ended = False
        self.refusal: Exception | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.on_loops_ended: Callable[[], None] = lambda: None
        self.seconds_of_compiler: Callable[[], float] = lambda: 0.0
        self.is_late = self.is_to_end = False
        self.loops = loops
        self.notes: list[str] = []
        self._batches = batches
        self._wanted = num_steps
        self._follower = follower
        self._follows_modules = follows_modules
        self._counts: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._num_optimizers = 0
        self._most_steps = 0
        self._num_backwards = self._num_forwards = 0
        self._is_between = False  # whether a backward pass has ended and no forward pass has begun since
        self._is_past_loops = False
        self._depth = 0
        self._open_pass: Pass | None = None  # of the running outermost module
        self._module_hooks: list[Any] = []

    @property
    def kind(self) -> StepKind:
        """Kind of event that counts as a step of the script: optimizer step, backward or forward pass."""
        if self._num_optimizers and (self._most_steps or not self._num_backwards):
            return StepKind.OPTIMIZER
        return StepKind.BACKWARD if self._num_backwards else StepKind.FORWARD

    @property
    def num_steps(self) -> int:
        return self._most_steps or self._num_backwards

    @property
    def has_optimizer(self) -> bool:
        return self._num_optimizers > 0

    @property
    def num_optimizer_steps(self) -> int:
        """Number of steps of all optimizers together."""
        return sum(self._counts.values())

    @property
    def num_backwards(self) -> int:
        """Number of backward passes that added to gradients."""
        return self._num_backwards

    @property
    def num_seen(self) -> int:
        """Number of steps seen, once the script has ended; forward passes if there were no other steps."""
        return self.num_steps or self._num_forwards

    @property
    def has_enough(self) -> bool:
        """Whether enough steps were seen for an answer, whatever the script does later."""
        if self._num_optimizers:
            return self._most_steps >= ENOUGH_STEPS
        return self._num_backwards >= ENOUGH_STEPS

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager that observes every model, optimizer and backward pass of this process."""
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
            with (
                self._batches.followed(),
                nullcontext() if self.loops is None else self.loops.followed(),
                self._optimizers_noted(),
                self._backward_followed(),
            ):
                yield
        finally:
            for handle in (*handles, *self._module_hooks):
                handle.remove()

    @contextmanager
    def _optimizers_noted(self) -> Iterator[None]:
        """Context manager that registers every optimizer that the script makes."""
        kind: Any = torch.optim.Optimizer
        initialize = kind.__init__

        def noted(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            initialize(optimizer, *args, **kwargs)
            self._counts.setdefault(optimizer, 0)
            self._num_optimizers += 1

        kind.__init__ = noted
        try:
            yield
        finally:
            kind.__init__ = initialize

    @contextmanager
    def _backward_followed(self) -> Iterator[None]:
        """Context manager that reports backward passes, and counts those that accumulate gradients."""
        run_backward = RUN_BACKWARD.get()
        depth = 0

        def followed(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if get_proxy_mode() is not None:  # a function's gradient is being traced, and nothing is trained
                return run_backward(*args, **kwargs)
            self._follower.backward()
            depth += 1
            try:
                return run_backward(*args, **kwargs)
            finally:
                depth -= 1
                # Gradients that are computed as part of a loss belong to its step.
                if not depth and kwargs.get("accumulate_grad"):
                    self._num_backwards += 1
                    self._is_between = True
                if not depth:
                    self._batches.after_backward()
                self._follower.after_backward()

        RUN_BACKWARD.replace(followed)
        try:
            yield
        finally:
            RUN_BACKWARD.replace(run_backward)

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth > 1 or self._batches.is_loading:
            return
        self.passed(module)
        if not self._is_past_loops:
            self._open_pass = self._batches.taken(module, (args, _keywords_of_call()))

    def passed(self, module: torch.nn.Module) -> None:
        """Counts a forward pass of an outermost module, and reports it to the follower."""
        self._count_pass()
        if self._follows_modules:
            self._follower.forward(module)

    def _count_pass(self) -> None:
        """Counts a forward pass; in a script without an optimizer, the pass ends the step before."""
        if self.is_late:
            self._end()
        if self._num_forwards:
            self._count(StepKind.FORWARD)
        self._num_forwards += 1
        if self._num_optimizers:
            if not self._most_steps and self._num_backwards >= _MOST_BACKWARDS:
                self._end()
            return
        if not self._num_backwards:
            if self._num_forwards > _MOST_FORWARDS:
                self.notes.append(f"from {_MOST_FORWARDS} forward passes, after which the script was ended")
                self._end()
            return
        if self._is_between:
            self._is_between = False
            self._follower.stepped(None)
            self._count(StepKind.BACKWARD)
            is_enough = self._num_backwards >= 2 * self._wanted
            self._go_on(counts=True, is_enough=is_enough)

    def saving(self) -> None:
        """Reports to the follower that the script saves something, such as a checkpoint."""
        self._follower.saving()

    def _leave(self, _module: torch.nn.Module, _args: Any, result: Any) -> None:
        self._depth -= 1
        if not self._depth and self._open_pass is not None:
            self._batches.returned(self._open_pass, result)
            self._open_pass = None

    def _stepping(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._follower.stepping(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Counts an optimizer's step, reports it, and ends loops or script after enough steps."""
        if self.has_ended:  # the script caught the first one
            raise ScriptEnd
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        counts = self._counts[optimizer] > self._most_steps
        self._most_steps += counts
        self._follower.stepped(optimizer)
        if counts:
            self._count(StepKind.OPTIMIZER)
        if self.num_steps == 1:
            try:
                self._batches.require_proof()
            except Exception as error:  # noqa: BLE001 - it ends the script, whatever catches it
                self.refuse(error)
        least = min(self._counts.values())
        is_enough = least >= self._wanted or self.num_steps >= _PATIENCE * self._wanted
        self._go_on(counts=counts, is_enough=is_enough)

    def _go_on(self, *, counts: bool, is_enough: bool) -> None:
        """Continues the script after a step, ends its loops, or ends the script.

        Args:
            counts: whether the step adds to the script's number of steps; see `Loops.stepped`.
            is_enough: whether the requested number of steps was made.
        """
        if not self._is_past_loops:
            is_enough = is_enough and not self._follower.wants_more(self.kind)
        loops = self.loops
        goes_on = not is_enough if loops is None else loops.stepped(counts=counts, is_enough=is_enough)
        if self.is_late or not goes_on:
            self._end()
        if is_enough and not self._is_past_loops:
            self._is_past_loops = True
            self.on_loops_ended()

    def _count(self, kind: StepKind) -> None:
        if self._is_past_loops:
            return
        if kind is not StepKind.FORWARD:
            self._batches.stepped(self._num_backwards)
        self._follower.counted(kind)

    def refuse(self, error: Exception) -> NoReturn:
        """Ends a script because of an action that cannot be predicted.

        The trial fails with `error`, unless enough steps were seen before; then the error becomes a note.
        """
        if not self.has_ended:
            if self.has_enough:
                self.notes.append(f"from {self.kind.counted(self.num_steps)}; the script then: {error}")
            else:
                self.refusal = error
        self._end()

    def leave(self) -> None:
        """Ends the observation for good, also if the script itself runs on because it cannot be ended."""
        if not self.has_ended:
            self.has_ended = True
            self._follower.ended()

    def _end(self) -> NoReturn:
        if not self.has_ended:
            self.leave()
            self.on_end()
        raise ScriptEnd


def _keywords_of_call() -> Any:
    """Keyword arguments of the module call that runs a global hook, read from the call stack."""
    frame = sys._getframe(2)  # noqa: SLF001 - `Module._call_impl`'s
    return frame.f_locals.get("kwargs")
