"""Single operators as they are benchmarked: what each computes.

Each is written from its definition, in the order of PyTorch's operators that its script has it in, for that
decides what is alive at once; transformers' own modules are run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from autofit_workers.workload.libraries.importing import imported

Row = Mapping[str, Any]


class Operator(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs)


class AddRMSNorm(nn.Module):
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


def llama_rms_norm(row: Row) -> nn.Module:
    llama: Any = imported("transformers.models.llama.modeling_llama", "rms_norm")
    made: nn.Module = llama.LlamaRMSNorm(row["H"], eps=row["eps"])
    return made


def llama_mlp(row: Row) -> nn.Module:
    llama: Any = imported("transformers.models.llama.modeling_llama", "swiglu")
    names = ("hidden_size", "intermediate_size", "hidden_act")
    config = imported("transformers", "swiglu").LlamaConfig(**{name: row[name] for name in names})
    made: nn.Module = llama.LlamaMLP(config).to(row["dtype"])
    return made


def llama_rope(_row: Row) -> nn.Module:
    llama: Any = imported("transformers.models.llama.modeling_llama", "rope")
    return Operator(llama.apply_rotary_pos_emb)


class DynamicTanh(nn.Module):
    """Zhu et al., 2025, "Transformers without Normalization"."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.weight, self.bias = (nn.Parameter(torch.ones(row["hidden_size"])) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x) + self.bias


class PolyNorm(nn.Module):
    """Zhuo et al., 2024, "Polynomial Composition Activations": three normed powers, in float32."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(()))
        self.eps = row["eps"]

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        cube, square, same = wide**3, wide**2, wide**1
        normed = [self._normed(each) for each in (cube, square, same)]
        total = (
            self.weight[0] * normed[0] + self.weight[1] * normed[1] + self.weight[2] * normed[2] + self.bias
        )
        return total.to(x.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    distance = torch.abs(p - q) / 2.0
    return torch.sum(distance) / p.size(0)


def relu_squared(x: Tensor) -> Tensor:
    return torch.square(F.relu(x))


def gated_silu(x: Tensor) -> Tensor:
    gate, up = torch.chunk(x, 2, -1)
    return F.silu(gate) * up


def sparsemax(x: Tensor) -> Tensor:
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


class MultiTokenAttention(nn.Module):
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


class SparseMultiTokenAttention(MultiTokenAttention):
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


def head(loss: Callable[..., Tensor]) -> Callable[[Row], nn.Module]:
    return lambda row: _Head(row, loss)


def preference(log_odds: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
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


def orpo(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Hong et al., 2024, "ORPO": 0.1 of the log odds ratio's log sigmoid."""
    odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return 0.1 * F.logsigmoid(odds)


def cpo(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Xu et al., 2024, "Contrastive Preference Optimization"."""
    difference = chosen - rejected
    return F.logsigmoid(0.1 * difference)


def simpo(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Meng et al., 2024, "SimPO": with a margin."""
    difference = chosen - rejected
    difference = difference - 5.0
    return F.logsigmoid(0.1 * difference)


class _TwoHeads(nn.Module):
    """A student's or policy's last layer, and a teacher's or reference's."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.of_policy, self.of_reference = (
            nn.Linear(row["H"], row["V"], bias=False, dtype=row["dtype"]) for _ in range(2)
        )


def jensen_shannon(log_q: Tensor, log_p: Tensor) -> Tensor:
    """The divergence of two distributions, the student's and the teacher's, in float32."""
    dtype = log_q.dtype
    log_p, log_q = log_p.to(torch.float32), log_q.to(torch.float32)
    mixed = torch.lerp(torch.exp(log_p), torch.exp(log_q), 0.5)
    divergence = 0.5 * _batch_kl(torch.log(mixed), log_p) + 0.5 * _batch_kl(torch.log(mixed), log_q)
    return divergence.to(dtype)


def _batch_kl(x: Tensor, log_target: Tensor) -> Tensor:
    return F.kl_div(x, log_target, reduction="batchmean", log_target=True)


class Distillation(_TwoHeads):
    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        of_student = self.of_policy(student)
        of_teacher = self.of_reference(teacher)
        log_q = torch.log_softmax(of_student / 1.0, dim=-1)
        log_p = torch.log_softmax(of_teacher / 1.0, dim=-1)
        return jensen_shannon(log_q, log_p)


class GroupRelativePolicy(_TwoHeads):
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


def experts(
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
