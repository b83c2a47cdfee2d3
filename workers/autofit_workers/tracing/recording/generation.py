"""Traces the first passes of text generation, from which the later passes are known.

A pass is one call of the model: the first takes the prompt, each other the token that the one before it made.
From pass to pass the cache alone grows, so what a pass takes is a line in its number: the passes from the
third on are held against each other, and those that follow are left to the replay (`Repetition`).

A quantized cache is not so: the last tokens are kept as they are, and every so many all are quantized anew.
Once that happens, each pass is followed.

`generate` asks after each pass whether all texts have ended, which is a value that a trace does not have: no
text ends, and the last pass that is followed ends the generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.trace import Repetition, Trace
from autofit_workers.tracing.recording.recorder import Recorder

NUM_TRACED_PASSES = 6
_QUANTIZED_ANEW = 128  # tokens: `residual_length` of QuantizedLayer, cache_utils.py of transformers 5
_MOST_FOLLOWED = 256  # passes, each of which takes some hundredths of a second a layer
_DECODE = "step 1 decode"


class _EnoughError(Exception):
    """Ends a generation once enough passes are traced."""


class TracedGeneration:
    """Text generation of which the first passes are traced.

    Args:
        recorder: records the events of the passes.
        new_tokens: how many tokens are to be generated, each by a pass.
        cache: see `autofit_workers.spec.knobs.cache`.

    Raises:
        UnsupportedError: too many passes would have to be followed.
    """

    def __init__(self, recorder: Recorder, new_tokens: int | None, cache: str) -> None:
        assert new_tokens is not None
        self._recorder = recorder
        self._new_tokens = new_tokens
        self._num_followed = NUM_TRACED_PASSES
        if cache == "quantized" and new_tokens > _QUANTIZED_ANEW:
            if new_tokens > _MOST_FOLLOWED:
                raise UnsupportedError(
                    f"a quantized cache is quantized anew after every {_QUANTIZED_ANEW} tokens, and is "
                    f"followed for {_MOST_FOLLOWED}: ask for at most so many --new-tokens, or another --cache"
                )
            self._num_followed = new_tokens
        self._starts: list[tuple[int, int]] = []  # of each pass, among events and allocations

    @contextmanager
    def followed(self, model: nn.Module) -> Iterator[None]:
        """Context that traces the passes of `model`, and ends after the last pass to trace."""
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
        is_over = len(self._starts) == min(self._new_tokens, self._num_followed)
        if self._starts or is_over:
            recorder.mark(_DECODE)
        self._starts.append((recorder.position, len(recorder.allocations)))
        if is_over:
            recorder.close()  # what dies from here on is of no pass
            raise _EnoughError

    def completed(self, trace: Trace) -> Trace:
        """`trace` with a `Repetition` that stands for the passes that were not traced.

        Raises:
            UnsupportedError: passes differ in more than their sizes.
        """
        times = self._new_tokens - self._num_followed
        if times <= 0:
            return trace
        if len(self._starts) <= self._num_followed:
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
