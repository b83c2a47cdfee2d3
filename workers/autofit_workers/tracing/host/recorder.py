"""Records a step's allocations on a fake CPU, with the scratch memory of its operators."""

from __future__ import annotations

from typing import Any

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.conv_algorithms import ConvAlgorithm, Rewrite
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.trace import Allocation, Category
from autofit_workers.tracing.host import convolutions, scratch
from autofit_workers.tracing.recording.call_log import CallLog
from autofit_workers.tracing.recording.recorder import Origin, Recorder


class HostRecorder(Recorder):
    """Recorder of a step's CPU allocations; pass `observe` to `FakeCpuMode`.

    The module `convolutions` has the workspaces of convolutions that are known without a run, and `scratch`
    measures the scratch memory of others, and of LSTM layers.

    Args:
        algorithm: algorithm of the convolutions.
        log: see `Recorder`.
    """

    _device_type = "cpu"

    def __init__(self, algorithm: ConvAlgorithm, log: CallLog | None = None) -> None:
        super().__init__(log)
        self._algorithm = algorithm
        self._reasons: list[str | None] = []  # by convolution, why it was not rewritten; None if it was

    def _takes_nothing(self, func: OpOverload, result: Any) -> bool:  # noqa: ARG002
        """Whether an operator certainly allocates nothing: False, as CPU kernels may need scratch memory."""
        return False

    def _record(  # noqa: PLR0917 - an operator's call and where it came from
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],  # noqa: ARG002 - convolutions are called without
        result: Any,
        operator: str,
        origin: Origin,
    ) -> None:
        """Records the outputs of an operator on the CPU, and its workspaces or measured scratch memory."""
        leaves = tree_leaves(result)
        known = convolutions.known(func, args, result, self._algorithm)
        self._reasons += convolutions.reasons(func, args, result, self._algorithm)
        if known is not None:
            self._allocate_with(leaves, known, operator, origin)
            return
        for one in scratch.passes(func, args):
            self._replay_pass(one, one.spans(args), leaves, operator, origin)
        self._allocate_all(leaves, operator, origin)

    def close(self) -> None:
        """Ends the recording of CPU allocations.

        Raises:
            InapplicableError: the algorithm is a rewrite that applies to none of the step's convolutions.
        """
        super().close()
        if isinstance(self._algorithm, Rewrite) and None not in self._reasons:
            raise InapplicableError(self._algorithm.applies_to_none(filter(None, self._reasons)))

    def _replay_pass(
        self,
        one: scratch.Pass,
        spans: list[Workspace],
        leaves: list[Any],
        operator: str,
        origin: Origin,
    ) -> None:
        """Records the scratch memory and outputs of one pass of an operator, in their measured order."""
        taken: dict[int, int] = {}
        for event in one.events:
            if event is None:
                self._allocate_all([leaves[number] for number in one.outputs], operator, origin)
            elif event >= 0:
                taken[event] = self._append(_scratch(spans[event], operator, origin))
            else:
                self._give_back([taken[~event]])

    def _allocate_with(
        self, leaves: list[Any], spans: list[Workspace | None], operator: str, origin: Origin
    ) -> None:
        """Records each output, followed by its workspace, which is freed immediately."""
        waiting = iter(spans)
        for leaf in leaves:
            if self._is_ours(leaf):
                self._allocate(leaf, operator, origin)
                span = next(waiting, None)
                if span is not None:
                    self._give_back([self._append(_scratch(span, operator, origin))])

    def _allocate_all(self, leaves: list[Any], operator: str, origin: Origin) -> None:
        for leaf in leaves:
            if self._is_ours(leaf):
                self._allocate(leaf, operator, origin)


def _scratch(span: Workspace, operator: str, origin: Origin) -> Allocation:
    return Allocation(
        num_bytes=span.likely_bytes,
        category=Category.WORKSPACE,
        operator=operator,
        module=origin.module,
        source=origin.source,
        stack=origin.stack,
        span_bytes=(span.low_bytes, span.high_bytes),
    )
