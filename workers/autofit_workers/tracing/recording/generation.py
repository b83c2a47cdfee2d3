"""Traces the first passes of text generation, from which the memory of later passes follows.

A pass is one call of the model: the first takes the prompt, each later one the token that the pass before
generated. Only the cache grows from pass to pass, so sizes are linear in the number of the pass. The last two
traced passes are checked to have the same events; all later passes are left to the replay (`Repetition`).

A quantized cache grows differently: it keeps the last tokens unquantized, and quantizes all anew after every
128. If more tokens than that are generated, every pass is traced.

`generate` checks after each pass whether all texts have ended. That depends on values, which a trace lacks:
no text ends here, and generation stops after the last pass to trace.
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
_MOST_FOLLOWED = 256  # passes; tracing one takes some hundredths of a second per layer
_DECODE = "step 1 decode"


class _EnoughError(Exception):
    """Raised to end a text generation once enough of its passes are traced."""


class TracedGeneration:
    """Text generation of which only the first forward passes are traced.

    Args:
        recorder: records the events of the passes.
        new_tokens: number of tokens to generate, each by one pass.
        cache: value of the knob `cache`, such as `quantized`.

    Raises:
        UnsupportedError: too many passes would have to be traced.
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
        self._starts: list[tuple[int, int]] = []  # numbers of events and allocations before each pass

    @contextmanager
    def followed(self, model: nn.Module) -> Iterator[None]:
        """Context for a generation by `model`, which is ended after the last pass to trace."""
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
            recorder.close()  # later frees belong to no pass
            raise _EnoughError

    def completed(self, trace: Trace) -> Trace:
        """Copy of `trace` with a `Repetition` that stands for the passes not traced.

        Raises:
            UnsupportedError: the last two traced passes differ in more than sizes, or the model is not called
                once for each token.
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
                "each new token takes other steps than the one before it, so the rest cannot be known "
                f"from the first: ask for at most {NUM_TRACED_PASSES} --new-tokens"
            )
        return dataclasses.replace(
            trace, repetition=Repetition(start=start, num_allocations=num_allocations, times=times)
        )
