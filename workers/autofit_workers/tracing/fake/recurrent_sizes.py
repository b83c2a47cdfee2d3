"""Sizes of cuDNN's buffers for a recurrent network: flat weights, reserve and workspace.

Only a GPU's cuDNN reports these sizes (`cudnnGetRNNTempSpaceSizes` needs a handle). The formulas here follow
from sizes that others published, in elements for L layers of H units in D directions with g gates, T steps
and B sequences:

    reserve     T·B·H·D·(k·L + L − 1), k = 5 for an LSTM, 6 for a GRU
                exact for both sizes in pytorch/pytorch#2895 (736,000,000 and 864,000,000 bytes on a P100:
                L = 4, H = 320, T·B = 25,000): all gates and the cell, or a GRU's six products, and the
                values passed between layers. k = 1 for a plain network is assumed by analogy.
    workspace   the weight matrices + (3g − 1)·L·D·B·H
                exact for both sizes in that issue (17,730,560 and 13,169,920 bytes; B = 100);
              + 2·T·B·H·D
                exact for tensorflow/tensorflow#30889 (9,961,472 bytes: a ReLU network, L = 2,
                H = 512, T = 20, B = 64, cuDNN 7); assumed for networks with gates too;
              + 2·T·B·(input + output) + 4·L·D·B·H + 3·B
                the same issue, with padded sequences (21,496,576 bytes); PyTorch declares all sequences
                as padded since it uses cuDNN's version 8 interface (`rnn_descriptor` of
                aten/src/ATen/native/cudnn/RNN.cpp);
              + 8 MiB
                in cuDNN 9: an LSTM with all sizes 1 needs 8 MiB + 832 bytes, and 5 × 64 bytes of reserve,
                in JAX's tests/experimental_rnn_test.py.

Not known are: the reserve for dropout between layers (a byte per element is assumed), the workspace of
persistent kernels (which PyTorch chooses for H ≤ 192 and in half precision), and whether half precision keeps
gates in float32. The span from low to high covers these. No torch is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit_workers.replay.spans import Workspace, between

_KEPT_PER_UNIT = {4: 5, 3: 6, 1: 1}  # elements of reserve per unit and step, by number of gates
_LIBRARY_WORKSPACE_BYTES = 8 * 2**20
_MATH_BYTES = 4  # half precision is computed in float32 (`promote_rnn_math_type` of RNN.cpp)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentNetwork:
    """Stack of recurrent layers that cuDNN runs in one call.

    Attributes:
        num_gates: 4 for an LSTM, 3 for a GRU, 1 for a plain network.
        proj_size: width that an LSTM's output is projected to; 0 without a projection.
        num_directions: 2 for a bidirectional network, else 1.
    """

    num_gates: int
    input_size: int
    hidden_size: int
    proj_size: int = 0
    num_layers: int = 1
    num_directions: int = 1

    @property
    def output_size(self) -> int:
        """Width of a recurrent layer's output in one direction."""
        return self.proj_size or self.hidden_size

    @property
    def num_matrix_elements(self) -> int:
        rows = self.num_gates * self.hidden_size
        deeper = self.output_size * self.num_directions
        columns = self.input_size + (self.num_layers - 1) * deeper + self.num_layers * self.output_size
        projections = self.num_layers * self.proj_size * self.hidden_size
        return self.num_directions * (rows * columns + projections)

    @property
    def num_weights(self) -> int:
        """Number of elements in the flat weight buffer, with both biases even if the network has none."""
        biases = 2 * self.num_gates * self.hidden_size * self.num_layers * self.num_directions
        return self.num_matrix_elements + biases


def reserve(network: RecurrentNetwork, num_rows: int, element_bytes: int, *, dropout: bool) -> Workspace:
    """Low, likely and high bytes of cuDNN's reserve space, which training keeps from forward to backward.

    Args:
        network: the recurrent network.
        num_rows: number of time steps of all sequences of the batch together.
        element_bytes: bytes of an element of the inputs.
        dropout: whether there is dropout between layers.
    """
    per_width = num_rows * network.num_directions
    units = per_width * network.hidden_size * network.num_layers
    handed_on = per_width * network.output_size * (network.num_layers - 1)
    kept = _KEPT_PER_UNIT[network.num_gates] * units
    if network.proj_size:
        kept += units  # the output before it is projected
    likely = (kept + handed_on) * element_bytes + (handed_on if dropout else 0)
    widest = max(element_bytes, _MATH_BYTES)
    high = (kept + units + (2 if dropout else 1) * handed_on) * widest
    return between(kept * element_bytes, likely, high)


def workspace(network: RecurrentNetwork, num_rows: int, batch_size: int, element_bytes: int) -> Workspace:
    """Low, likely and high bytes of the workspace of one cuDNN call, freed when the call ends.

    The calls are forward, backward for data, and backward for weights.

    Args:
        network: the recurrent network.
        num_rows: number of time steps of all sequences of the batch together.
        batch_size: number of sequences.
        element_bytes: bytes of an element of the inputs.
    """
    states = network.num_layers * network.num_directions * batch_size * network.hidden_size
    width = network.output_size * network.num_directions
    own = network.num_matrix_elements + (3 * network.num_gates - 1) * states
    sequences = 2 * num_rows * network.hidden_size * network.num_directions
    padding = 2 * num_rows * (network.input_size + width) + 4 * states + 3 * batch_size
    all_gates = network.num_gates * num_rows * network.hidden_size * network.num_directions
    likely = (own + sequences + padding) * element_bytes
    return between(
        own * element_bytes,
        likely + _LIBRARY_WORKSPACE_BYTES,
        likely + all_gates * _MATH_BYTES + _LIBRARY_WORKSPACE_BYTES,
    )
