"""The scripts of single operators: what is made before the calls, what is called, and how.

A script makes the modules of all providers, unless said otherwise, so the weights of each are there whichever
is called. Where an operator is not modelled, one with the same weights stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from tests.bench.language import operators as ops
from tests.bench.language.operators import Row

REFERENCES = ("torch", "huggingface")
BOTH = ("huggingface", "liger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is made once, before the calls.

    Attributes:
        of_outputs: the gradients that backward starts from; none where each call makes its own.
        wanted: what `torch.autograd.grad` is asked for; none where gradients are left with the leaves.
        leaves: what gets gradients and is no input itself.
    """

    of_forward: tuple[Tensor, ...]
    of_outputs: tuple[Tensor, ...] = ()
    wanted: tuple[Tensor, ...] = ()
    leaves: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One script.

    Attributes:
        operators: what is called, by provider.
        makes_one: whether only the module that is called is made.
        by_mode: whether what is called follows the mode; otherwise it is both passes.
        retains: whether backward keeps the graph.
        sums: whether backward starts from the sum of the output, which is kept.
        drops_gradients: whether those of the call before are dropped first.
    """

    inputs: Callable[[Row, torch.device], Inputs]
    operators: Mapping[str, Callable[[Row], nn.Module]]
    makes_one: bool = False
    by_mode: bool = False
    retains: bool = True
    sums: bool = False
    drops_gradients: bool = False


def _rows(*names: str, given: bool = True) -> Callable[[Row, torch.device], Inputs]:
    """A leaf of these sizes, and the gradient of an output like it unless each call makes one."""

    def inputs(row: Row, device: torch.device) -> Inputs:
        dtype = row.get("dtype", torch.float32)
        x = torch.randn([row[name] for name in names], dtype=dtype, device=device, requires_grad=True)
        return Inputs(of_forward=(x,), of_outputs=(torch.ones_like(x, requires_grad=False),) if given else ())

    return inputs


def _classified(row: Row, device: torch.device) -> Inputs:
    """Logits in float32, and their classes."""
    num = row["B"] * row["T"]
    x = torch.randn(num, row["V"], device=device, requires_grad=True)
    return Inputs(of_forward=(x, torch.zeros(num, dtype=torch.int64, device=device)))


def _token_ids(row: Row, device: torch.device) -> Inputs:
    return Inputs(of_forward=(torch.zeros(row["B"], row["T"], dtype=torch.int64, device=device),))


def _square_scores(row: Row, device: torch.device) -> Inputs:
    shape = (row["B"], row["C_in"], row["L"], row["L"])
    x = torch.randn(shape, dtype=row["dtype"], device=device, requires_grad=True)
    return Inputs(of_forward=(x,), of_outputs=(torch.ones_like(x, requires_grad=False),))


def _flat_rows(row: Row, device: torch.device) -> Inputs:
    x = torch.randn(row["B"] * row["T"], row["V"], dtype=row["dtype"], device=device, requires_grad=True)
    return Inputs(of_forward=(x,), of_outputs=(torch.ones_like(x, requires_grad=False),))


def _residual_rows(row: Row, device: torch.device) -> Inputs:
    x, r = (torch.randn(row["M"], row["H"], device=device, requires_grad=True) for _ in range(2))
    return Inputs(of_forward=(x, r), of_outputs=tuple(map(torch.zeros_like, (x.detach(), r.detach()))))


def _distributions(of_input: Callable[..., Tensor], of_target: Callable[..., Tensor]) -> Any:
    """Two matrices, B×T by V. The graph that made the first one lives, and its leaf gets a gradient."""

    def inputs(row: Row, device: torch.device) -> Inputs:
        shape = (row["B"] * row["T"], row["V"])
        leaf = torch.randn(shape, device=device, requires_grad=True)
        target = of_target(torch.randn(shape, device=device), dim=-1)
        return Inputs(of_forward=(of_input(leaf, dim=-1), target), leaves=(leaf,))

    return inputs


def _heads(row: Row, device: torch.device) -> Inputs:
    length, num_heads = row.get("seq_len", row.get("T")), row["num_q_heads"]
    head_size = row.get("hidden_size", row.get("H")) // num_heads
    shapes = [(1, length, num, head_size) for num in (num_heads, row["num_kv_heads"])]
    leaves = [torch.randn(each, dtype=row["dtype"], device=device, requires_grad=True) for each in shapes]
    query, key = (each.transpose(1, 2) for each in leaves)
    # `randn_like` of the key is not told a dtype, but has the key's.
    gradients = tuple(torch.zeros_like(each, requires_grad=False) for each in (query, key))
    positions, frequencies = torch.arange(length, device=device), torch.ones(head_size // 2, device=device)
    # A product, which is why there is cuBLAS's workspace.
    angles = (frequencies[None, :, None] @ positions[None, None].float()).transpose(1, 2)
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = (each.to(row["dtype"]) for each in (angles.cos(), angles.sin()))
    return Inputs(
        of_forward=(query, key, cos, sin),
        of_outputs=gradients,
        wanted=(query, key),
        leaves=(positions, frequencies),
    )


def _tokens(row: Row, device: torch.device) -> Inputs:
    """Hidden states of B×T tokens in one dimension, and their classes."""
    x = torch.randn(row["BT"], row["H"], dtype=row["dtype"], device=device, requires_grad=True)
    return Inputs(of_forward=(x, torch.zeros(row["BT"], dtype=torch.int64, device=device)))


def _student_and_teacher(row: Row, device: torch.device) -> Inputs:
    student, teacher = (torch.rand(row["BT"], row["H"], dtype=row["dtype"], device=device) for _ in range(2))
    return Inputs(of_forward=(student.requires_grad_(), teacher))


def _preferences(row: Row, device: torch.device) -> Inputs:
    """Sequences of which the first half is preferred to the second."""
    x = torch.randn(row["B"], row["T"], row["H"], dtype=row["dtype"], device=device, requires_grad=True)
    return Inputs(of_forward=(x, torch.zeros(row["B"], row["T"], dtype=torch.int64, device=device)))


def _fixed_preferences(row: Row, device: torch.device) -> Inputs:
    """The same, of which the hidden states get no gradient."""
    x, target = _preferences(row, device).of_forward
    return Inputs(of_forward=(x.detach(), target))


def _completions(row: Row, device: torch.device) -> Inputs:
    size, kind = (row["B"], row["T"]), {"dtype": row["dtype"], "device": device}
    x = torch.randn(*size, row["H"], **kind, requires_grad=True)
    tokens = torch.zeros(size, dtype=torch.int64, device=device)
    mask = torch.ones(size, device=device)
    advantages, of_reference = torch.randn(row["B"], **kind), torch.randn(*size, row["H"], **kind)
    return Inputs(of_forward=(x, tokens, mask, advantages, of_reference))


def _routed_tokens(row: Row, device: torch.device) -> Inputs:
    """Tokens, the weights of all experts, and each token's share of K of them.

    The weights are a product of what gets the gradients, and both live.
    """
    num, num_experts, hidden, width, top = (row[n] for n in ("T", "E", "H", "intermediate_dim", "K"))
    kind: Any = {"dtype": row["dtype"], "device": device}
    x = torch.randn(num, hidden, **kind, requires_grad=True)
    leaves = (
        torch.randn(num_experts, 2 * width, hidden, **kind, requires_grad=True),
        torch.randn(num_experts, hidden, width, **kind, requires_grad=True),
    )
    gate_up, down = (each * 0.02 for each in leaves)
    chosen = torch.zeros(num, top, dtype=torch.int32, device=device)
    shares = torch.randn(num, top, **kind, requires_grad=True)
    return Inputs(of_forward=(x, gate_up, down, chosen, shares), leaves=leaves)


def _plain(operator: nn.Module) -> Callable[[Row], nn.Module]:
    return lambda _row: operator


def _gated(batch_size: str) -> Kernel:
    """Llama's MLP, whichever its activation; only the module that is called is made."""
    return Kernel(
        inputs=_rows(batch_size, "T", "hidden_size", given=False),
        operators={"huggingface": ops.llama_mlp},
        makes_one=True,
        by_mode=True,
    )


def _preference_loss(
    log_odds: Callable[[Tensor, Tensor], Tensor], inputs: Callable[[Row, torch.device], Inputs] = _preferences
) -> Kernel:
    """A script of a head with such a loss."""
    operators = dict.fromkeys(BOTH, ops.head(ops.preference(log_odds)))
    return Kernel(inputs=inputs, operators=operators, retains=False)


_POLICY = Kernel(
    inputs=_completions,
    operators=dict.fromkeys(("torch", "liger"), ops.GroupRelativePolicy),
    retains=False,
)


KERNELS: dict[str, Kernel] = {
    "rms_norm": Kernel(inputs=_rows("M", "H"), operators=dict.fromkeys(BOTH, ops.llama_rms_norm)),
    "layer_norm": Kernel(
        inputs=_rows("M", "N"),
        operators=dict.fromkeys(BOTH, lambda row: nn.LayerNorm(row["N"], eps=row["eps"])),
    ),
    "group_norm": Kernel(
        inputs=_rows("M", "C", "H"),
        operators=dict.fromkeys(
            BOTH, lambda row: nn.GroupNorm(row["C"] // row["channels_per_group"], row["C"], eps=row["eps"])
        ),
    ),
    "fused_add_rms_norm": Kernel(
        inputs=_residual_rows,
        operators=dict.fromkeys(
            ("huggingface", "liger_fused_add_rms_norm", "liger_rms_norm"), ops.AddRMSNorm
        ),
        retains=False,
    ),
    "softmax": Kernel(inputs=_rows("N", given=False), operators={"torch": _plain(nn.Softmax(dim=-1))}),
    "relu_squared": Kernel(
        inputs=_rows("N", given=False),
        operators={"torch": _plain(ops.Operator(ops.relu_squared))},
    ),
    "sparsemax": Kernel(inputs=_flat_rows, operators={"torch": _plain(ops.Operator(ops.sparsemax))}),
    "rope": Kernel(inputs=_heads, operators={"huggingface": ops.llama_rope}),
    "swiglu": _gated("B"),
    "geglu": _gated("bsz"),
    "tiled_swiglu": _gated("bsz"),
    "tiled_geglu": _gated("bsz"),
    "megatron_swiglu": Kernel(
        inputs=lambda row, device: _rows("S", "B", "F", given=False)(
            {**row, "F": 2 * row["ffn_local"], "dtype": torch.bfloat16}, device
        ),
        operators={"torch": _plain(ops.Operator(ops.gated_silu))},
        retains=False,
        sums=True,
        drops_gradients=True,
    ),
    "kl_div": Kernel(
        inputs=_distributions(F.log_softmax, F.softmax),
        operators={"torch": _plain(nn.KLDivLoss(reduction="batchmean"))},
    ),
    "cross_entropy": Kernel(
        inputs=_classified, operators={"huggingface": _plain(nn.CrossEntropyLoss())}, retains=False
    ),
    "embedding": Kernel(
        inputs=_token_ids,
        operators=dict.fromkeys(BOTH, lambda row: nn.Embedding(row["V"], row["D"], dtype=row["dtype"])),
        retains=False,
    ),
    "jsd": Kernel(
        inputs=_distributions(F.log_softmax, F.log_softmax),
        operators={"torch": _plain(ops.Operator(ops.jensen_shannon))},
    ),
    "tvd": Kernel(
        inputs=_distributions(F.softmax, F.softmax),
        operators={"torch": _plain(ops.Operator(ops.total_variation))},
    ),
    "dyt": Kernel(
        inputs=_rows("BT", "hidden_size"),
        operators=dict.fromkeys(("torch", "torch_compile", "liger"), ops.DynamicTanh),
    ),
    "poly_norm": Kernel(inputs=_rows("M", "H"), operators=dict.fromkeys(BOTH, ops.PolyNorm)),
    "multi_token_attention": Kernel(
        inputs=_square_scores, operators=dict.fromkeys(("torch", "liger"), ops.MultiTokenAttention)
    ),
    "sparse_multi_token_attention": Kernel(
        inputs=_square_scores,
        operators=dict.fromkeys(("torch", "liger"), ops.SparseMultiTokenAttention),
    ),
    "fused_linear_cross_entropy": Kernel(
        inputs=_tokens, operators=dict.fromkeys(BOTH, ops.head(F.cross_entropy)), retains=False
    ),
    "fused_linear_orpo_loss": _preference_loss(ops.orpo),
    "fused_linear_cpo_loss": _preference_loss(ops.cpo),
    "fused_linear_simpo_loss": _preference_loss(ops.simpo),
    "dpo_loss": _preference_loss(ops.cpo, inputs=_fixed_preferences),
    "fused_linear_jsd": Kernel(
        inputs=_student_and_teacher,
        operators={"torch": ops.Distillation},
        retains=False,
        makes_one=True,
    ),
    "fused_linear_grpo_loss_token": _POLICY,
    "fused_linear_grpo_loss_sequence": _POLICY,
    "fused_moe": Kernel(
        inputs=_routed_tokens,
        operators={"huggingface": _plain(ops.Operator(ops.experts))},
        makes_one=True,
        by_mode=True,
    ),
}
