"""Follows a generation through its first passes; the others are known from them.

A pass is one call of the model: the first takes the prompt, each other the token that the one before it made.
From pass to pass the cache alone grows, so what a pass takes is a line in its number: the passes from the
third on are held against each other, and those that follow are left to the replay (`Repetition`).

`generate` asks after each pass whether all texts have ended, which is a value that a trace does not have: no
text ends, and the last pass that is followed ends the generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from workers.errors import UnsupportedError
from workers.predict.recording.recorder import Recorder
from workers.trace import Repetition, Trace

NUM_TRACED_PASSES = 6
_DECODE = "step 1 decode"


class _EnoughError(Exception):
    """Ends a generation."""


class TracedGeneration:
    """The passes of one generation.

    Args:
        recorder: of their events.
        new_tokens: that are to be generated, each by a pass.
    """

    def __init__(self, recorder: Recorder, new_tokens: int | None) -> None:
        assert new_tokens is not None
        self._recorder = recorder
        self._new_tokens = new_tokens
        self._starts: list[tuple[int, int]] = []  # of each pass, among events and allocations

    @contextmanager
    def followed(self, model: nn.Module) -> Iterator[None]:
        """Follows the passes that the model makes in the block, and ends it after the last of them."""
        hook = model.register_forward_pre_hook(self._begin_pass)
        owner: Any = model
        owner._beam_search_has_unfinished_sequences = lambda *_args: True
        try:
            yield
        except _EnoughError:
            pass
        finally:
            hook.remove()
            del owner._beam_search_has_unfinished_sequences

    def _begin_pass(self, _model: nn.Module, _inputs: Any) -> None:
        recorder = self._recorder
        is_over = len(self._starts) == min(self._new_tokens, NUM_TRACED_PASSES)
        if self._starts or is_over:
            recorder.mark(_DECODE)
        self._starts.append((recorder.position, len(recorder.allocations)))
        if is_over:
            recorder.close()  # what dies from here on is of no pass
            raise _EnoughError

    def completed(self, trace: Trace) -> Trace:
        """The trace with what is known of the passes that were not followed.

        Raises:
            UnsupportedError: passes differ in more than their sizes.
        """
        times = self._new_tokens - NUM_TRACED_PASSES
        if times <= 0:
            return trace
        if len(self._starts) <= NUM_TRACED_PASSES:
            raise UnsupportedError(
                f"the model was called {len(self._starts)} times for {self._new_tokens} tokens, and not once "
                f"for each: ask for at most {NUM_TRACED_PASSES} --new-tokens"
            )
        *_, (before, first), (start, middle), (stop, end) = self._starts
        num_allocations = end - middle
        shifted = tuple(
            event + num_allocations if event >= 0 else event - num_allocations
            for event in trace.events[before:start]
        )
        if middle - first != num_allocations or shifted != trace.events[start:stop]:
            raise UnsupportedError(
                "each new token takes other steps than the one before it, so that the rest cannot be known "
                f"from the first: ask for at most {NUM_TRACED_PASSES} --new-tokens"
            )
        return dataclasses.replace(
            trace, repetition=Repetition(start=start, num_allocations=num_allocations, times=times)
        )
