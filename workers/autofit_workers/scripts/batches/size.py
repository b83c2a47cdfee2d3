"""Sets a script's batch size, and proves that the script trained on a batch of the requested size.

    --batch-arg, --batch-env   the script reads the size
    --batch-name               a constant in its code is changed, `batches.constants`
    none of them               its data loader's batch size is changed, `batches.loaders`
    no size is asked for       the script's own size is found out

    loader ──▶ model call ──▶ output ──▶ backward reaches it: the model is trained on the batch
                           └▶ no backward does: a probe, an actor, an evaluation

A size is proved by the number of samples that a loader collated, or, without a loader, by the input of a
model whose output was trained; never by divisibility.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.scripts.batches.loaders import LoadedBatch, Loaders
from autofit_workers.spec.errors import InvalidTrialError
from autofit_workers.spec.protocol import ScriptCall
from autofit_workers.spec.trace import AS_ASKED, BatchCount, BatchSource
from autofit_workers.workload.workload import tensors_of

_NUM_SHOWN = 4


class _Rank(IntEnum):
    """Strength of the evidence that a forward pass gives about the batch size, weakest first."""

    NOTHING = 0
    SHOWN = 1  # without gradients, and no loader gave a batch
    EXAMPLE = 2  # with gradients, and no loader gave a batch
    EVALUATED = 3
    GIVEN = 4  # a loader's batch, with gradients
    TRAINED = 5  # backward reached its output

    @classmethod
    def of(cls, *, is_loaded: bool) -> _Rank:
        if is_loaded:
            return cls.GIVEN if torch.is_grad_enabled() else cls.EVALUATED
        return cls.EXAMPLE if torch.is_grad_enabled() else cls.SHOWN


@dataclass(slots=True)
class Pass:
    """Forward pass of a module that no other module calls, with the shapes of its inputs.

    Attributes:
        module: number that identifies the module.
        position: number of allocations and frees recorded before the call.
        shapes: shapes of the tensors that the module got.
        batch: data loader's batch that the tensors come from; None if no loader gave any.
        is_trained: whether a backward pass has reached the module's output.
    """

    module: int
    position: int
    shapes: list[tuple[int, ...]]
    batch: LoadedBatch | None
    is_trained: bool = False

    @property
    def num_samples(self) -> int | None:
        """Number of samples of the batch; None if no input of the module has a dimension."""
        if self.batch is not None:
            return self.batch.num_samples(self.shapes)
        return next((shape[0] for shape in self.shapes if shape), None)


@dataclass(frozen=True, slots=True)
class _Found:
    """Batch size found in a script's run, with the source that shows it.

    Attributes:
        size: number of samples, as the script's own batch-size option counts them.
        source: kind of place that shows the size, such as a data loader.
        num_parts: number of batches into which `size` is divided, for example one for each rank.
        batch: the data loader's batch that shows the size; None without a loader.
    """

    size: int
    source: BatchSource
    num_parts: int = 1
    batch: LoadedBatch | None = None


class Batches:
    """Follows the batches of one run of a script, and determines the batch size.

    Args:
        name: name of the script, for messages.
        call: how the script is called, which says whether autofit sets the data loader's batch size.
        batch_size: batch size that the user asks for; None for the script's own.
        loads_here: whether data loaders load in this process, and only the few batches that are needed.
        num_ranks: returns the number of ranks that the script has started as.
        position: returns the number of allocations and frees recorded so far.
    """

    def __init__(
        self,
        name: str,
        call: ScriptCall,
        batch_size: int | None,
        *,
        loads_here: bool = False,
        num_ranks: Callable[[], int] = lambda: 1,
        position: Callable[[], int] = lambda: 0,
    ) -> None:
        self._name = name
        self._wanted = batch_size
        self._num_ranks = num_ranks
        self._position = position
        self._loaders = Loaders(batch_size if call.sets_loader else None, loads_here=loads_here)
        self._shapes: list[tuple[int, ...]] = []
        self._passes: list[Pass] = []  # passes with gradients since the last backward pass ended
        self._of_steps: list[Pass] = []  # such passes of all steps that count
        self._trained_module: int | None = None
        self._rank = _Rank.NOTHING
        self._found: _Found | None = None
        self._num_trained: int | None = None  # samples of the batch that the model was trained on
        self._num_steps = 0
        self._num_given = 0  # batches of its loader until the last step ended
        self._num_backwards = 0  # backward passes until then

    @property
    def is_loading(self) -> bool:
        """Whether a data loader is making a batch; modules called meanwhile do not count as models."""
        return self._loaders.is_loading

    @property
    def is_proved(self) -> bool:
        """Whether a batch of the requested size was seen in the script's run."""
        return self._found is not None

    @property
    def is_settled(self) -> bool:
        """Whether the batch size is final: seen in a forward pass that a backward pass has reached."""
        return self._rank is _Rank.TRAINED

    @property
    def size(self) -> int | None:
        """Batch size that ran, in terms of the script's own batch-size option; None until one was seen."""
        return None if self._found is None else self._found.size

    @property
    def whole_dataset(self) -> int | None:
        """Number of samples of the data set if it is smaller than the requested batch size; else None."""
        found = self._found
        return found.size if found is not None and found.source is BatchSource.WHOLE_DATASET else None

    @property
    def num_in_dataset(self) -> int | None:
        """Number of samples of the data set, or the part in use, behind the last batch; None if unknown."""
        return self._loaders.num_in_dataset

    @property
    def count(self) -> BatchCount:
        """Source of the batch size, and number of batches in a step; `AS_ASKED` until a batch was seen."""
        if self._found is None:
            return AS_ASKED
        return BatchCount(
            source=self._found.source,
            num_parts=self._found.num_parts,
            num_batches=self._num_batches() * self._num_ranks(),
        )

    def _num_batches(self) -> int:
        """Number of batches in a step on this rank, counted by loaded batches or by backward passes."""
        assert self._found is not None
        num_backwards = self._num_backwards / max(1, self._num_steps)
        if self._found.source is BatchSource.MODEL_INPUT or not self._num_given:
            return max(1, round(num_backwards))
        num_given = self._num_given / max(1, self._num_steps)
        return max(1, round(num_given if self._num_steps > 1 else min(num_given, num_backwards)))

    @property
    def notes(self) -> list[str]:
        """Sentences on how the script divides the requested batch; empty if it does not."""
        found = self._found
        if found is None or found.num_parts == 1:
            return []
        num_ranks, num_samples = self._num_ranks(), found.size // found.num_parts
        num_passes = found.num_parts // num_ranks
        on_ranks = f" on each of {num_ranks} ranks" if num_ranks > 1 else ""
        in_turn = f", {num_passes} times in a step" if num_passes > 1 else ""
        return [f"the script divides the batch of {found.size}: {num_samples} at a time{on_ranks}{in_turn}"]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Context manager that records data loaders' batches, and sets their batch size if `call` says so."""
        with self._loaders.followed():
            yield

    def taken(self, module: torch.nn.Module, given: Any) -> Pass | None:
        """Records the inputs of a model's call, from which the batch size may be found.

        Args:
            module: the model that is called.
            given: its arguments.

        Returns:
            The call as a `Pass`; None if the batch size is final and the call is not another training pass.
        """
        if self.is_settled and (id(module) != self._trained_module or not torch.is_grad_enabled()):
            return None
        shapes = [tuple(tensor.shape) for tensor in tensors_of(given)]
        shapes += [(int(packed.batch_sizes[0]),) for packed in _packed(given)]
        each = Pass(id(module), self._position(), shapes, self._loaders.batch_of(shapes))
        if torch.is_grad_enabled():
            self._of_steps.append(each)
        if not self.is_settled:
            self._shapes += shapes
            self._note(each, _Rank.of(is_loaded=each.batch is not None))
            self._passes += [each] if torch.is_grad_enabled() else []
        return each

    @property
    def trained_passes(self) -> list[Pass]:
        """Forward passes that backward passes reached, in order, of the model that was trained first."""
        return [each for each in self._of_steps if each.is_trained and each.module == self._trained_module]

    def coming(self) -> Iterator[LoadedBatch]:
        """Yields the batches that the trained batch's loader gives next, for their shapes only.

        The script does not train on these. Empty if no loader gave the batch.
        """
        batch = None if self._found is None else self._found.batch
        return iter(()) if batch is None else self._loaders.coming(batch)

    def returned(self, each: Pass, result: Any) -> None:
        """Hooks a forward pass's result, to mark the pass as trained once a backward pass reaches it."""
        if not torch.is_grad_enabled():
            return

        def reached(_gradient: torch.Tensor) -> None:
            each.is_trained = True

        outputs: Iterator[Any] = tensors_of(result)
        for tensor in outputs:
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(reached)

    def after_backward(self) -> None:
        """Determines the batch size, after a backward pass, from the forward passes that it reached."""
        trained = [each for each in self._passes if each.is_trained]
        self._passes.clear()
        if not trained or self.is_settled:
            return
        proof = next((each for each in trained if self._shown_by(each) is not None), trained[0])
        self._num_trained, self._trained_module = proof.num_samples, proof.module
        # The trained pass decides, whatever an evaluation got before.
        self._found, self._rank = None, _Rank.GIVEN
        self._note(proof, _Rank.TRAINED)

    def stepped(self, num_backwards: int) -> None:
        """Counts a finished step of the script, and checks whether its batches add up to the batch size.

        Args:
            num_backwards: number of backward passes so far in the run.
        """
        self._num_steps += 1
        self._num_backwards = num_backwards
        if self._found is None and self._num_trained is not None:
            num_parts = num_backwards * self._num_ranks()
            if self._num_trained * num_parts == self._wanted:  # the script accumulates them
                self._found, self._rank = (
                    _Found(self._wanted, BatchSource.MODEL_INPUT, num_parts),
                    _Rank.TRAINED,
                )
        if self._found is not None and self._found.batch is not None:
            self._num_given = self._loaders.num_given_by(self._found.batch)

    def _note(self, each: Pass, rank: _Rank) -> None:
        found = self._shown_by(each) if rank > self._rank else None
        if found is not None:
            self._found, self._rank = found, rank

    def _shown_by(self, each: Pass) -> _Found | None:
        """Batch size that a forward pass's inputs show; None if unknown or at odds with the wanted one."""
        wanted, num_samples, batch = self._wanted, each.num_samples, each.batch
        source = BatchSource.MODEL_INPUT if batch is None else BatchSource.DATA_LOADER
        found = functools.partial(_Found, source=source, batch=batch)
        if wanted is None or num_samples == wanted:
            return None if num_samples is None else found(num_samples)
        if num_samples is not None and num_samples * self._num_ranks() == wanted:
            return found(wanted, num_parts=self._num_ranks())
        if batch is None:
            return found(wanted) if any(wanted in shape for shape in each.shapes) else None
        if num_samples == batch.num_in_dataset and num_samples is not None and num_samples < wanted:
            return found(num_samples, source=BatchSource.WHOLE_DATASET)
        # Rows of a batch that the script cuts, or joins from several batches.
        rows = [shape[0] for shape in (*each.shapes, *batch.shapes) if shape]
        return found(wanted, source=BatchSource.MODEL_INPUT) if wanted in rows else None

    def require_proof(self) -> None:
        """Raises `InvalidTrialError` if the model was given batches, but none of the requested size."""
        if self.is_proved or not self._shapes or self._wanted is None:
            return
        shapes = list(dict.fromkeys(self._shapes))
        shown = ", ".join(map(str, shapes[:_NUM_SHOWN])) + (", …" if len(shapes) > _NUM_SHOWN else "")
        is_loaded = self._loaders.has_given and self._num_trained is not None
        gave = f" and its data loader gave {self._num_trained}" if is_loaded else ""
        raise InvalidTrialError(
            f"the model of {self._name} got no input with {self._wanted} samples, only {shown}{gave}: name "
            "what sets its batch size, an argument (--batch-arg), an environment variable (--batch-env) or a "
            "constant in its code (--batch-name)"
        )


def _packed(given: Any) -> list[PackedSequence]:
    """Packed sequences in a model's input; the first time step of each has one row per sample."""
    leaves = tree_leaves(given, is_leaf=lambda value: isinstance(value, PackedSequence))
    return [leaf for leaf in leaves if isinstance(leaf, PackedSequence)]
