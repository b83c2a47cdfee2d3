"""Memory of LSTM, GRU and plain recurrent networks as cuDNN runs them on a GPU.

A build of PyTorch without cuDNN unrolls these networks into hundreds of small operators. The functions here
instead allocate what `aten/src/ATen/native/cudnn/RNN.cpp` and `aten/src/ATen/cudnn/AutocastRNN.cpp` do, in
the same order: one flat buffer of all weights, the outputs, cuDNN's workspace and its reserve. Sizes of
workspace and reserve are estimates, explained in `recurrent_sizes`.

On a GPU, PyTorch unrolls the networks too if cuDNN is disabled (knob `conv_algo` native). That is not
predicted: all convolution policies share one trace, in which cuDNN is enabled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.dispatch import current_mode
from autofit_workers.replay.spans import NO_WORKSPACE, between
from autofit_workers.tracing.fake import recurrent_sizes
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.library_memory import library_memory
from autofit_workers.tracing.fake.recurrent_sizes import RecurrentNetwork

aten: Any = torch.ops.aten

# Values of cuDNN's enum `cudnnRNNMode_t`, and the number of gates of each.
_RELU, _TANH, _LSTM, _GRU = range(4)
_NUM_GATES = {_RELU: 1, _TANH: 1, _LSTM: 4, _GRU: 3}
# `CUDNN_TENSOR_DTYPES` of torch/backends/cudnn; weights of other dtypes are not put into one buffer.
_FLATTENED_DTYPES = (torch.float16, torch.float32, torch.float64)
# Bytes: "slightly over 2MB" in `get_dropout_state` of RNN.cpp; never freed.
_DROPOUT_STATE = between(2 * 2**20, 2 * 2**20 + 512, 4 * 2**20)


def register(library: torch.library.Library) -> None:
    """Registers LSTM, GRU and RNN operators for fake CUDA tensors, and replaces `flatten_parameters`."""
    library.impl("lstm.input", _lstm, "AutogradCUDA")
    for name, mode in (("gru", _GRU), ("rnn_tanh", _TANH), ("rnn_relu", _RELU)):
        library.impl(f"{name}.input", _with_one_state(mode), "AutogradCUDA")
    library.impl("lstm.data", _packed_lstm, "AutogradCUDA")
    for name, mode in (("gru", _GRU), ("rnn_tanh", _TANH), ("rnn_relu", _RELU)):
        library.impl(f"{name}.data", _packed_with_one_state(mode), "AutogradCUDA")
    base: Any = torch.nn.RNNBase
    base.flatten_parameters = flatten_parameters


def flatten_parameters(module: torch.nn.RNNBase) -> None:
    """Moves a recurrent network's weights into one buffer, as `nn.RNNBase.flatten_parameters` on a GPU."""
    weights = [weight for weight in module._flat_weights if isinstance(weight, Tensor)]
    if len(weights) != len(module._flat_weights_names):
        return
    if any(not w.is_cuda or w.dtype not in _FLATTENED_DTYPES or w.dtype != weights[0].dtype for w in weights):
        return
    network = RecurrentNetwork(
        num_gates={"LSTM": 4, "GRU": 3}.get(module.mode, 1),
        input_size=module.input_size,
        hidden_size=module.hidden_size,
        proj_size=module.proj_size,
        num_layers=module.num_layers,
        num_directions=2 if module.bidirectional else 1,
    )
    with torch.no_grad():
        buffer = torch.zeros(network.num_weights, dtype=weights[0].dtype, device=GPU)
        for weight, part in zip(weights, _parts(buffer, weights), strict=True):
            weight.data = part


def _parts(buffer: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Views of the flat weight buffer, one in the shape of each weight; cuDNN's order may differ."""
    parts, offset = [], 0
    for weight in weights:
        parts.append(buffer.narrow(0, offset, weight.numel()).view(weight.shape))
        offset += weight.numel()
    return parts


# ── the networks, above autograd ────────────────────────────────────────────────────────────────


def _lstm(  # noqa: PLR0917 - the operator's own signature
    input: Tensor,  # noqa: A002
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final states of operator `lstm` for a batch of sequences, as `_run` makes them."""
    hidden, cell = hx
    hidden_size = cell.size(2)
    proj_size = hidden.size(2) if hidden.size(2) != hidden_size else 0
    output, hy, cy = _run(
        _LSTM, input, hidden, cell, params, hidden_size=hidden_size, proj_size=proj_size,
        has_biases=has_biases, num_layers=num_layers, dropout=dropout, train=train,
        bidirectional=bidirectional, batch_first=batch_first,
    )  # fmt: skip
    return output, hy, cy


def _with_one_state(mode: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Replacement for `gru`, `rnn_tanh` or `rnn_relu`, by cuDNN's `mode`, for a batch of sequences."""

    def network(  # noqa: PLR0917 - the operator's own signature
        input: Tensor,  # noqa: A002
        hx: Tensor,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor]:
        output, hy, _ = _run(
            mode, input, hx, None, params, hidden_size=hx.size(2), proj_size=0,
            has_biases=has_biases, num_layers=num_layers, dropout=dropout, train=train,
            bidirectional=bidirectional, batch_first=batch_first,
        )  # fmt: skip
        return output, hy

    return network


def _packed_lstm(  # noqa: PLR0917 - the operator's own signature
    data: Tensor,
    batch_sizes: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final states of operator `lstm` for packed sequences, as `_run` makes them."""
    hidden, cell = hx
    hidden_size = cell.size(2)
    proj_size = hidden.size(2) if hidden.size(2) != hidden_size else 0
    return _run(
        _LSTM, data, hidden, cell, params, hidden_size=hidden_size, proj_size=proj_size,
        has_biases=has_biases, num_layers=num_layers, dropout=dropout, train=train,
        bidirectional=bidirectional, batch_sizes=batch_sizes,
    )  # fmt: skip


def _packed_with_one_state(mode: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Function for `gru`, `rnn_tanh` or `rnn_relu`, networks with one state, on packed sequences."""

    def network(  # noqa: PLR0917 - the operator's own signature
        data: Tensor,
        batch_sizes: Tensor,
        hx: Tensor,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, Tensor]:
        output, hy, _ = _run(
            mode, data, hx, None, params, hidden_size=hx.size(2), proj_size=0,
            has_biases=has_biases, num_layers=num_layers, dropout=dropout, train=train,
            bidirectional=bidirectional, batch_sizes=batch_sizes,
        )  # fmt: skip
        return output, hy

    return network


def _run(
    mode: int,
    input: Tensor,  # noqa: A002
    hx: Tensor,
    cx: Tensor | None,
    params: list[Tensor],
    *,
    hidden_size: int,
    proj_size: int,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final states of a recurrent network, run as `_cudnn_impl` does.

    Under autocast the weights are cast as `_cudnn_rnn_cast_reflatten` does.
    """
    network = _network(mode, input, hidden_size, proj_size, num_layers, bidirectional)
    sizes = [] if batch_sizes is None else batch_sizes.tolist()
    buffer = _flat_buffer(params, network.num_weights)
    state = _dropout_state() if train and dropout > 0 else None
    weights_per_layer = (4 if has_biases else 2) + (1 if proj_size else 0)
    autocast = torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", enabled=False):
        if autocast and params[0].dtype == torch.float32:
            buffer, params = _in_half(params, network.num_weights)
        if autocast:
            input, hx = input.to(torch.float16), hx.to(torch.float16)  # noqa: A001
            cx = None if cx is None else cx.to(torch.float16)
        output, hy, cy, _reserve, _buffer = aten._cudnn_rnn(
            input, params, weights_per_layer, buffer, hx, cx, mode, hidden_size, proj_size, num_layers,
            batch_first, dropout, train, bidirectional, sizes, state,
        )  # fmt: skip
    return output, hy, cy


def _flat_buffer(params: list[Tensor], num_weights: int) -> Tensor | None:
    """Flat buffer in which all weights of a recurrent network lie, as a view of the first weight's storage.

    None if the weights are separate tensors. Source: `try_get_weight_buf`.

    Args:
        params: the weights.
        num_weights: number of elements of all weights.
    """
    storages = {param.untyped_storage()._cdata for param in params}
    first = params[0]
    if len(storages) > 1 or first.untyped_storage().nbytes() < num_weights * first.element_size():
        return None
    with torch.no_grad():
        return first.detach().as_strided((num_weights,), (1,), 0)


def _in_half(params: list[Tensor], num_weights: int) -> tuple[Tensor, list[Tensor]]:
    """Flat float16 buffer with copies of all weights of a recurrent network, and the copies as tensors."""
    with torch.no_grad():
        buffer = torch.zeros(num_weights, dtype=torch.float16, device=GPU)
        parts = _parts(buffer, params)
    # As in PyTorch, autograd must not see these tensors as views of the buffer.
    return buffer, [part.detach().copy_(param) for part, param in zip(parts, params, strict=True)]


def _dropout_state() -> Tensor:
    """Dropout state of cuDNN, a tensor made once and kept for all recurrent networks of the process."""
    mode: Any = current_mode()  # the fake GPU's mode, which keeps it as a process would
    kept: dict[str, Tensor] = mode.kept
    if "dropout state" not in kept:
        with torch.no_grad():
            kept["dropout state"] = library_memory(_DROPOUT_STATE, "aten._cudnn_init_dropout_state")
    return kept["dropout state"]


def _network(  # noqa: PLR0917 - in the operator's order
    mode: int,
    input: Tensor,  # noqa: A002
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    bidirectional: bool,
) -> RecurrentNetwork:
    return RecurrentNetwork(
        num_gates=_NUM_GATES[mode],
        input_size=input.size(-1),
        hidden_size=hidden_size,
        proj_size=proj_size,
        num_layers=num_layers,
        num_directions=2 if bidirectional else 1,
    )


# ── cuDNN's calls, below autograd ───────────────────────────────────────────────────────────────


def _cudnn_rnn(  # noqa: PLR0917 - the operator's own signature
    input: Tensor,  # noqa: A002
    _weight: list[Tensor],
    _weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    _batch_sizes: list[int],
    _dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:
    """Outputs of operator `_cudnn_rnn`; allocates its copies, reserve and workspace as cuDNN does."""
    network = _network(mode, input, hidden_size, proj_size, num_layers, bidirectional)
    copied = _steps_first(input, batch_first).contiguous()  # noqa: F841 - lives as long as the call
    output = _sequence(input, network.output_size * network.num_directions, batch_first)
    hy = torch.empty_like(hx)
    cy = hx.new_empty(0) if cx is None else torch.empty_like(cx)
    if weight_buf is None:
        weight_buf = input.new_empty(network.num_weights)
    workspace = _workspace(network, input, hx, "aten._cudnn_rnn")  # noqa: F841 - likewise
    num_rows = input.numel() // input.size(-1)
    kept = recurrent_sizes.reserve(network, num_rows, input.element_size(), dropout=dropout > 0)
    reserve = library_memory(kept if train else NO_WORKSPACE, "aten._cudnn_rnn", kept=True)
    return output, hy, cy, reserve, weight_buf


def _cudnn_rnn_backward(  # noqa: PLR0917 - the operator's own signature
    input: Tensor,  # noqa: A002
    weight: list[Tensor],
    _weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    _dropout: float,
    _train: bool,
    bidirectional: bool,
    _batch_sizes: list[int],
    _dropout_state: Tensor | None,
    _reserve: Tensor,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor | None]]:
    """Gradients of operator `_cudnn_rnn`; allocates copies and workspaces as cuDNN does."""
    if grad_output is None and grad_hy is None and grad_cy is None:
        return None, None, None, [None] * len(weight)
    network = _network(mode, input, hidden_size, proj_size, num_layers, bidirectional)
    # Outputs without a gradient get zeros, which live until the call ends.
    grads = [
        torch.zeros_like(like, memory_format=torch.contiguous_format) if grad is None else grad
        for grad, like in ((grad_output, output), (grad_hy, hx), (grad_cy, cx))
        if like is not None
    ]
    grad_input, grad_hx, grad_cx = _backward_data(network, input, grads, hx, cx, batch_first)
    grad_weights: list[Tensor | None] = []
    if output_mask[3]:
        grad_weights = [*_backward_weights(network, input, hx, weight, weight_buf, batch_first)]
    return grad_input, grad_hx, grad_cx, grad_weights


def _backward_data(  # noqa: PLR0917 - an inner part of one call
    network: RecurrentNetwork,
    input: Tensor,  # noqa: A002
    grads: list[Tensor],
    hx: Tensor,
    cx: Tensor | None,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of a recurrent network's input and first states, with the temporaries of that cuDNN call."""
    copied = [  # noqa: F841 - lives as long as the call
        _steps_first(input, batch_first).contiguous(), _steps_first(grads[0], batch_first).contiguous()
    ]  # fmt: skip
    grad_input = _sequence(input, network.input_size, batch_first)
    copied_states = [grad.contiguous() for grad in grads[1:]]  # noqa: F841 - likewise
    grad_hx = torch.empty_like(hx)
    grad_cx = None if cx is None else torch.empty_like(cx)
    workspace = _workspace(network, input, hx, "aten._cudnn_rnn_backward")  # noqa: F841 - likewise
    return grad_input, grad_hx, grad_cx


def _backward_weights(  # noqa: PLR0917 - an inner part of one call
    network: RecurrentNetwork,
    input: Tensor,  # noqa: A002
    hx: Tensor,
    weight: list[Tensor],
    weight_buf: Tensor,
    batch_first: bool,
) -> list[Tensor]:
    """Gradients of a recurrent network's weights, views of one flat buffer."""
    copied = _steps_first(input, batch_first).contiguous()  # noqa: F841 - lives as long as the call
    grad_buffer = torch.zeros_like(weight_buf)
    workspace = _workspace(network, input, hx, "aten._cudnn_rnn_backward")  # noqa: F841 - likewise
    return _parts(grad_buffer, weight)


def _steps_first(sequence: Tensor, batch_first: bool) -> Tensor:
    return sequence.transpose(0, 1) if batch_first and sequence.dim() == 3 else sequence


def _sequence(like: Tensor, width: int, batch_first: bool) -> Tensor:
    """New output sequence stored time step by time step, even if `batch_first` puts the batch first."""
    if like.dim() == 2:  # packed: the time steps of all sequences in one dimension
        return like.new_empty((like.size(0), width))
    first, second = like.shape[:2]
    if not batch_first:
        return like.new_empty((first, second, width))
    return like.new_empty_strided((first, second, width), (width, first * width, 1))


def _workspace(
    network: RecurrentNetwork,
    input: Tensor,  # noqa: A002
    hx: Tensor,
    operator: str,
) -> Tensor:
    num_rows = input.numel() // input.size(-1)
    span = recurrent_sizes.workspace(network, num_rows, hx.size(1), input.element_size())
    return library_memory(span, operator)


WITH_TEMPORARIES: dict[Any, Callable[..., Any]] = {
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
}
