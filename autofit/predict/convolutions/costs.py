"""Likely times of convolutions under each algorithm, used to rank the algorithms.

cuDNN's own choice takes the time that `autofit_workers.replay.time` predicts. The other algorithms were never
timed. They are assumed to take the time of their arithmetic or of their memory traffic at the card's speeds,
whichever is longer, and never less than cuDNN's choice, which itself chooses among matrix products,
transforms and direct kernels. These times therefore only rank algorithms and are never shown in seconds.
Times of measured trials replace them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autofit_workers.replay.time.costs import Costs
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import ConvPolicy, Rewrite
from autofit_workers.spec.conv_algorithms.algorithm import direct_flops, tensor_bytes
from autofit_workers.spec.work import Convolution

# Assumed shares of a card's FLOP per second that kernels reach, for algorithms that were never timed.
_OF_PRODUCTS, _OF_PLAIN_KERNELS, _OF_TRANSFORMS = 0.7, 0.25, 0.25
# Assumed factor by which a plan with a smaller workspace takes longer than cuDNN's first choice.
FALLBACK_SLOWDOWN = 2.0


class ConvCosts:
    """Predicts the times of convolutions on one card, under any algorithm.

    Args:
        costs: predicts the times of kernels on the card.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def relative(self, assigned: Iterable[tuple[Convolution, str]]) -> float:
        """Ratio of the total time of convolutions to the time that they take with cuDNN's own choice.

        It is 1 if there are no convolutions.

        Args:
            assigned: convolution calls, each with the name of its algorithm.
        """
        total = by_default = 0.0
        for (call, conv_algo), times in Counter(assigned).items():
            total += times * self.seconds(call, conv_algo)
            by_default += times * self._costs.convolution_seconds(call)
        return total / by_default if by_default else 1.0

    def seconds(self, call: Convolution, conv_algo: str) -> float:
        """Likely seconds of a convolution call; only for comparison with other times on the same card.

        If the algorithm cannot run the call, it is the time with cuDNN's own choice.
        """
        algorithm = conv.find(conv_algo)
        by_default = self._costs.convolution_seconds(call)
        if isinstance(algorithm, ConvPolicy):
            return by_default if algorithm.enabled else max(by_default, self._by_native_kernels(call))
        assert isinstance(algorithm, Rewrite), "a plan has an algorithm for each layer"
        if algorithm.leaves(call) is not None:
            return by_default
        return max(by_default, self._rewritten(call, algorithm))

    def _by_native_kernels(self, call: Convolution) -> float:
        speeds = self._costs.speeds
        arithmetic = direct_flops(call) / (speeds.vector_flops * _OF_PLAIN_KERNELS)
        return max(arithmetic, tensor_bytes(call) / speeds.bandwidth) + speeds.launch_seconds

    def _rewritten(self, call: Convolution, algorithm: Rewrite) -> float:
        """Likely seconds of a convolution call that is rewritten to other operators, in portions.

        The portions run one after the other, each with a kernel launch.
        """
        speeds, num_portions = self._costs.speeds, algorithm.num_portions(call)
        part = algorithm.handed_on(call)
        if part is not None:
            whole_parts = call.input_shape[0] / part.input_shape[0]
            copied_bytes = 2 * algorithm.own_bytes(call) * num_portions
            on_device = whole_parts * self._costs.convolution_seconds(part) + copied_bytes / speeds.bandwidth
        else:
            rate = self._costs.matmul_flops(call.dtype) * _OF_PRODUCTS
            if algorithm.name == "fft":
                rate = speeds.vector_flops * _OF_TRANSFORMS
            on_device = max(algorithm.flops(call) / rate, algorithm.moved_bytes(call) / speeds.bandwidth)
        on_device += num_portions * speeds.launch_seconds
        return max(on_device, num_portions * self._costs.constants.host.call)
