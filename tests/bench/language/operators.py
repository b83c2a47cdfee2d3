"""Single operators as they are benchmarked: what each computes, and what lives beside it on the card.

Each is written from its definition, in the order of PyTorch's operators that its script has it in, for that
decides what is alive at once; transformers' own modules are run. A script makes the modules of all providers,
unless said otherwise, so the weights of each are there whichever is called.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.workload.libraries.importing import imported

Row = Mapping[str, Any]
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


class Operator(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs)


# Inputs.


def _rows(*names: str, given: bool = True) -> Callable[[Row, torch.device], Inputs]:
    """A leaf of these sizes, and the gradient of an output like it unless each call makes one."""

    def inputs(row: Row, device: torch.device) -> Inputs:
        dtype = row.get("dtype", torch.float32)
        x = torch.randn([row[name] for name in names], dtype=dtype, device=device, requires_grad=True)
        return Inputs(of_forward=(x,), of_outputs=(torch.ones_like(x, requires_grad=False),) if given else ())

    return inputs


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
    """Two float32 matrices, B×T by V; the graph that made the first one lives, and its leaf gets a gradient."""

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


# Operators.


class _AddRMSNorm(nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(row["H"]))
        self.eps = row["eps"]

    def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        residual = residual.to(torch.float32)
        hidden = hidden + residual
        residual = hidden
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(dtype), residual.to(dtype)


def _llama_rms_norm(row: Row) -> nn.Module:
    llama: Any = imported("transformers.models.llama.modeling_llama", "rms_norm")
    made: nn.Module = llama.LlamaRMSNorm(row["H"], eps=row["eps"])
    return made


def _llama_mlp(row: Row) -> nn.Module:
    llama: Any = imported("transformers.models.llama.modeling_llama", "swiglu")
    names = ("hidden_size", "intermediate_size", "hidden_act")
    config = imported("transformers", "swiglu").LlamaConfig(**{name: row[name] for name in names})
    made: nn.Module = llama.LlamaMLP(config).to(row["dtype"])
    return made


def _llama_rope(_row: Row) -> nn.Module:
    llama: Any = imported("transformers.models.llama.modeling_llama", "rope")
    return Operator(llama.apply_rotary_pos_emb)


def _relu_squared(x: Tensor) -> Tensor:
    return torch.square(F.relu(x))


def _gated_silu(x: Tensor) -> Tensor:
    gate, up = torch.chunk(x, 2, -1)
    return F.silu(gate) * up


def _sparsemax(x: Tensor) -> Tensor:
    """Martins and Astudillo, 2016, "From Softmax to Sparsemax": projection onto the simplex, by sorting."""
    ordered, _ = torch.sort(x, dim=-1, descending=True)
    sums = torch.cumsum(ordered, dim=-1)
    ranks = torch.arange(1, x.size(-1) + 1, device=x.device, dtype=x.dtype).view(1, -1)
    bound = 1 + ranks * ordered
    support = bound > sums
    num = support.sum(dim=-1, keepdim=True).clamp(min=1)
    of_support = (ordered * support).sum(dim=-1, keepdim=True)
    threshold = (of_support - 1) / num
    return torch.clamp(x - threshold, min=0)


class _MultiTokenAttention(nn.Module):
    """Golovneva et al., 2025, "Multi-Token Attention": a convolution over masked attention probabilities."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        shape = (row["C_out"], row["C_in"] // row["groups"], row["K"], row["K"])
        self.weight = nn.Parameter(torch.empty(shape, dtype=row["dtype"]))
        self.bias = nn.Parameter(torch.empty(row["C_out"], dtype=row["dtype"]))
        self.padding, self.groups = row["K"] // 2, row["groups"]

    def forward(self, scores: Tensor) -> Tensor:
        mask, least, zero = self._constants(scores, scores.dtype)
        masked = scores.masked_fill(~mask, least)
        probabilities = F.softmax(masked, dim=-1)
        mixed = self._mixed(probabilities, self.weight, self.bias)
        return mixed.masked_fill(~mask, zero)

    def _constants(self, scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        length, device = scores.size(-1), scores.device
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=device))[None, None]
        least, zero = (torch.full((), value, device=device, dtype=dtype) for value in (-1e9, 0.0))
        return mask, least, zero

    def _mixed(self, probabilities: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(probabilities, weight, bias, padding=self.padding, groups=self.groups)


class _SparseMultiTokenAttention(_MultiTokenAttention):
    """The same with sparsemax, in float32."""

    def forward(self, scores: Tensor) -> Tensor:
        mask, least, zero = self._constants(scores, torch.float32)
        wide = scores.to(torch.float32)
        masked = wide.masked_fill(~mask, least)
        ordered, _ = torch.sort(masked, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        ranks = torch.arange(1, scores.size(-1) + 1, device=scores.device, dtype=torch.float32).view(
            1, 1, 1, -1
        )
        is_positive = ordered > -1e8
        support = (1 + ranks * ordered > sums) & is_positive
        num = torch.sum(support, dim=-1, keepdim=True)
        at_least_one = torch.max(num, torch.ones_like(num))
        of_support = torch.gather(sums, dim=-1, index=at_least_one.long() - 1)
        threshold = (of_support - 1) / at_least_one.to(torch.float32)
        threshold = torch.where(num == 0, torch.full_like(threshold, float("inf")), threshold)
        probabilities = torch.clamp(masked - threshold, min=0)
        weight, bias = self.weight.to(torch.float32), self.bias.to(torch.float32)
        mixed = self._mixed(probabilities, weight, bias)
        return mixed.masked_fill(~mask, zero).to(scores.dtype)


class _Head(nn.Module):
    """A language model's last layer, with a loss."""

    def __init__(self, row: Row, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(row["H"], row["V"], bias=False, dtype=row["dtype"])
        self._loss = loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logits = self.linear(x)
        return self._loss(logits, target)


def _head(loss: Callable[..., Tensor]) -> Callable[[Row], nn.Module]:
    return lambda row: _Head(row, loss)


def _preference(log_odds: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross entropy of what is preferred, less what mean log probabilities of both halves say.

    Its logits are the model's in float32.
    """

    def loss(raw: Tensor, target: Tensor) -> Tensor:
        num_chosen = raw.shape[0] // 2
        logits = raw.float()
        entropy = F.cross_entropy(
            logits[:num_chosen].view(-1, logits.shape[-1]), target[:num_chosen].view(-1)
        )
        mask = target != -100
        labels = torch.where(target == -100, 0, target)
        of_tokens = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        means = (of_tokens * mask).sum(-1) / mask.sum(-1)
        return entropy - log_odds(means[:num_chosen], means[num_chosen:]).mean()

    return loss


def _orpo(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Hong et al., 2024, "ORPO": 0.1 of the log odds ratio's log sigmoid."""
    odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return 0.1 * F.logsigmoid(odds)


def _cpo(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Xu et al., 2024, "Contrastive Preference Optimization"."""
    difference = chosen - rejected
    return F.logsigmoid(0.1 * difference)


class _TwoHeads(nn.Module):
    """A student's or policy's last layer, and a teacher's or reference's."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.of_policy, self.of_reference = (
            nn.Linear(row["H"], row["V"], bias=False, dtype=row["dtype"]) for _ in range(2)
        )


def _jensen_shannon(log_q: Tensor, log_p: Tensor) -> Tensor:
    """The divergence of two distributions, the student's and the teacher's, in float32."""
    dtype = log_q.dtype
    log_p, log_q = log_p.to(torch.float32), log_q.to(torch.float32)
    mixed = torch.lerp(torch.exp(log_p), torch.exp(log_q), 0.5)
    divergence = 0.5 * _batch_kl(torch.log(mixed), log_p) + 0.5 * _batch_kl(torch.log(mixed), log_q)
    return divergence.to(dtype)


def _batch_kl(x: Tensor, log_target: Tensor) -> Tensor:
    return F.kl_div(x, log_target, reduction="batchmean", log_target=True)


class _Distillation(_TwoHeads):
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        of_student = self.of_policy(student)
        of_teacher = self.of_reference(teacher)
        log_q = torch.log_softmax(of_student / 1.0, dim=-1)
        log_p = torch.log_softmax(of_teacher / 1.0, dim=-1)
        return _jensen_shannon(log_q, log_p)


class _GroupRelativePolicy(_TwoHeads):
    """Shao et al., 2024, "DeepSeekMath": a clipped ratio of policies, and 0.1 of a divergence."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self._of_sequences = row["importance_sampling_level"] == "sequence"

    def forward(
        self, x: Tensor, tokens: Tensor, mask: Tensor, advantages: Tensor, of_reference: Tensor
    ) -> Tensor:
        logits = x @ self.of_policy.weight.t()
        log_probabilities = F.log_softmax(logits.float(), dim=-1)
        logps = log_probabilities.gather(dim=-1, index=tokens.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            reference_logits = of_reference @ self.of_reference.weight.t()
            reference_log_probabilities = F.log_softmax(reference_logits.float(), dim=-1)
            reference = reference_log_probabilities.gather(dim=-1, index=tokens.unsqueeze(-1)).squeeze(-1)
        log_ratio = logps - logps.detach()
        if self._of_sequences:
            log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
        ratio = torch.exp(log_ratio)
        clipped = torch.clamp(ratio, 0.8, 1.2)
        loss = -torch.min(ratio * advantages.unsqueeze(1), clipped * advantages.unsqueeze(1))
        divergence = torch.exp(reference - logps) - (reference - logps) - 1.0
        loss = loss + 0.1 * divergence
        return (loss * mask).sum() / torch.clamp(mask.sum(), min=1.0)


def _experts(
    x: Tensor, gate_up_weights: Tensor, down_weights: Tensor, chosen: Tensor, shares: Tensor
) -> Tensor:
    """A mixture of experts, one after the other, each on the tokens that chose it.

    How many do is drawn: each token takes K of E, at random.
    """
    num_experts, share = gate_up_weights.shape[0], chosen.shape[1] / gate_up_weights.shape[0]
    deviation, draw = math.sqrt(x.shape[0] * share * (1 - share)), random.Random(0)
    output = torch.zeros_like(x)
    with torch.no_grad():
        mask = F.one_hot(chosen.long(), num_classes=num_experts).permute(2, 1, 0)
    for expert in range(num_experts):
        num = max(1, min(x.shape[0], round(draw.gauss(x.shape[0] * share, deviation))))
        places = torch.zeros(num, 2, dtype=torch.int64, device=x.device)  # as nonzero makes them
        rank, token = places.unbind(1)
        current = x[token]
        gate, up = F.linear(current, gate_up_weights[expert]).chunk(2, dim=-1)
        current = F.silu(gate) * up
        current = F.linear(current, down_weights[expert])
        current = current * shares[token, rank, None]
        output.index_add_(0, token, current.to(output.dtype))
    del mask
    return output


def _plain(operator: nn.Module) -> Callable[[Row], nn.Module]:
    return lambda _row: operator


KERNELS: dict[str, Kernel] = {
    "rms_norm": Kernel(inputs=_rows("M", "H"), operators=dict.fromkeys(BOTH, _llama_rms_norm)),
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
        operators=dict.fromkeys(("huggingface", "liger_fused_add_rms_norm", "liger_rms_norm"), _AddRMSNorm),
        retains=False,
    ),
    "softmax": Kernel(inputs=_rows("N", given=False), operators={"torch": _plain(nn.Softmax(dim=-1))}),
    "relu_squared": Kernel(
        inputs=_rows("N", given=False), operators={"torch": _plain(Operator(_relu_squared))}
    ),
    "sparsemax": Kernel(inputs=_flat_rows, operators={"torch": _plain(Operator(_sparsemax))}),
    "rope": Kernel(inputs=_heads, operators={"huggingface": _llama_rope}),
    "swiglu": Kernel(
        inputs=_rows("B", "T", "hidden_size", given=False),
        operators={"huggingface": _llama_mlp},
        makes_one=True,
        by_mode=True,
    ),
    "tiled_swiglu": Kernel(
        inputs=_rows("bsz", "T", "hidden_size", given=False),
        operators={"huggingface": _llama_mlp},
        makes_one=True,
        by_mode=True,
    ),
    "megatron_swiglu": Kernel(
        inputs=lambda row, device: _rows("S", "B", "F", given=False)(
            {**row, "F": 2 * row["ffn_local"], "dtype": torch.bfloat16}, device
        ),
        operators={"torch": _plain(Operator(_gated_silu))},
        retains=False,
        sums=True,
        drops_gradients=True,
    ),
    "kl_div": Kernel(
        inputs=_distributions(F.log_softmax, F.softmax),
        operators={"torch": _plain(nn.KLDivLoss(reduction="batchmean"))},
    ),
    "multi_token_attention": Kernel(
        inputs=_square_scores, operators=dict.fromkeys(("torch", "liger"), _MultiTokenAttention)
    ),
    "sparse_multi_token_attention": Kernel(
        inputs=_square_scores, operators=dict.fromkeys(("torch", "liger"), _SparseMultiTokenAttention)
    ),
    "fused_linear_cross_entropy": Kernel(
        inputs=_tokens, operators=dict.fromkeys(BOTH, _head(F.cross_entropy)), retains=False
    ),
    "fused_linear_orpo_loss": Kernel(
        inputs=_preferences, operators=dict.fromkeys(BOTH, _head(_preference(_orpo))), retains=False
    ),
    "fused_linear_cpo_loss": Kernel(
        inputs=_preferences, operators=dict.fromkeys(BOTH, _head(_preference(_cpo))), retains=False
    ),
    "fused_linear_jsd": Kernel(
        inputs=_student_and_teacher, operators={"torch": _Distillation}, retains=False, makes_one=True
    ),
    "fused_linear_grpo_loss_sequence": Kernel(
        inputs=_completions, operators=dict.fromkeys(("torch", "liger"), _GroupRelativePolicy), retains=False
    ),
    "fused_moe": Kernel(
        inputs=_routed_tokens,
        operators={"huggingface": _plain(Operator(_experts))},
        makes_one=True,
        by_mode=True,
    ),
}
