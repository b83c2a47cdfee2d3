"""Predicted peak memory of a block of code in a test: the fixture `peak_memory`.

The block runs on a GPU that is not there, which PyTorch is patched for. It stays patched, so blocks run in a
fork of pytest's process (see `forked`), and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from autofit.errors import UsageError, WorkloadFailedError
from autofit.predict.estimate import Breakdown, Estimate
from autofit.predict.predictor import Predictor
from autofit.settings.resolve import resolve_one_configuration
from autofit_workers.spec.errors import WorkerError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialSpec, WorkloadRef

if TYPE_CHECKING:
    from autofit_workers.tracing.block import BlockTracer

_state = {"is_fork": False}


class BlockPeak:
    """Predicted peak memory of a block; known once the block has ended.

    Attributes:
        device: GPU for the code in the block, a `torch.device`.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self._estimate: Estimate | None = None

    def end(self, estimate: Estimate) -> None:
        """Tells the prediction of the block, which has ended."""
        self._estimate = estimate

    @property
    def estimate(self) -> Estimate:
        """Prediction of the block, with a breakdown of the peak, its largest holders, and notes.

        Raises:
            UsageError: the block has not ended.
        """
        if self._estimate is None:
            raise UsageError(
                "a block's peak is known once the block has ended: read it after the with statement"
            )
        return self._estimate

    @property
    def likely_bytes(self) -> int:
        """Likely reserved peak: the most memory that PyTorch's allocator takes on the card."""
        return self.estimate.needed.likely_bytes

    @property
    def high_bytes(self) -> int:
        """High end of the reserved peak, with 95 % confidence."""
        return self.estimate.needed.high_bytes

    @property
    def allocated_bytes(self) -> int:
        """Allocated peak: the most bytes that tensors hold at one time."""
        return self.estimate.peak_allocated_bytes

    @property
    def breakdown(self) -> Breakdown:
        """Parts of the allocated peak."""
        return self.estimate.breakdown


class PeakMemory:
    """Maker of blocks whose peak memory is predicted; the value of the fixture `peak_memory`.

    Args:
        name: name of the test.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def __call__(self, *, gpu: str | None = None) -> Iterator[BlockPeak]:
        """Context manager whose block runs on a GPU that is not there; its peak is predicted.

        Args:
            gpu: a GPU model that `autofit gpus` lists; without it the likely peak is that of an sm_80 card.

        Raises:
            UsageError: there is no such card, or the block is not in the test itself.
            WorkloadFailedError: the block does something that only a real GPU can do.
        """
        if not _state["is_fork"]:
            raise UsageError(
                "peak_memory is for the test itself, which runs in a fork of pytest's process: write `with` "
                "there, not in a fixture"
            )
        settings = resolve_one_configuration({"model": "block", "gpu": gpu}, "a block")
        from autofit_workers.tracing.block import BlockTracer

        with _translated():
            tracer = BlockTracer(self._name)
            peak = BlockPeak(tracer.device)
            with tracer.tracing():
                yield peak
        peak.end(_estimated(tracer, self._name, settings.card))


def prepare() -> list[Any]:
    """Imports all that blocks need, so that no fork has to, and leaves this process otherwise as it is.

    Returns:
        Import finders that belong to it, for `enter_fork`.
    """
    before = list(sys.meta_path)
    import autofit_workers.tracing.block  # noqa: F401 - imported for forks

    added = [finder for finder in sys.meta_path if finder not in before]
    sys.meta_path[:] = before
    return added


def enter_fork(finders: list[Any]) -> None:
    """Lets blocks run in this process, which is a fork of pytest's and ends after the test.

    Args:
        finders: what `prepare` returned in pytest's process.
    """
    from autofit_workers.tracing.block import use_one_thread

    sys.meta_path += finders
    use_one_thread()
    _state["is_fork"] = True


@contextmanager
def _translated() -> Iterator[None]:
    """Context in which an error of the fake GPU becomes one of autofit's, with the same sentence."""
    try:
        yield
    except WorkerError as error:
        raise WorkloadFailedError(str(error), kind=error.kind) from error


def _estimated(tracer: BlockTracer, name: str, card: Any) -> Estimate:
    trace = tracer.trace()
    predictor = Predictor(WorkloadRef(kind="pickle", target=name), _refused)
    return predictor.curve_of(trace, Knobs(), card)(trace.batch_size)


def _refused(_spec: TrialSpec) -> NoReturn:
    raise AssertionError("a block is traced already")
