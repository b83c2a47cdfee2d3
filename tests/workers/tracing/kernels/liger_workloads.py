"""A step of each operator of Liger: `NAME` is a workload for each name of `STEPS`.

A step makes its inputs as products with a weight, so that each has a gradient.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from autofit_workers.workload.workload import Workload

ROWS, WIDTH, WORDS, HEADS = 64, 128, 256, 4
HEAD = WIDTH // HEADS
Step = Callable[["Operator", Tensor, Tensor], Any]  # of the module, rows and tokens


def _liger(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"liger_kernel.{module}"), name)


class Operator(nn.Module):
    """An operator between products, with weights of a student and of a teacher."""

    def __init__(self, make: Callable[[], nn.Module] | None, step: Step) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.teacher = nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False)
        self.module = nn.Identity() if make is None else make()
        self._step = step

    def forward(self, rows: Tensor, tokens: Tensor) -> Tensor:
        found = self._step(self, self.first(rows), tokens)
        parts = found if isinstance(found, tuple) else (found,)
        return sum((p.float().sum() for p in parts if p.requires_grad), start=torch.zeros((), device="cuda"))

    def heads(self, rows: Tensor) -> Tensor:
        """Rows as queries: batch, heads, tokens, elements of a head."""
        return rows.view(*rows.shape[:2], HEADS, HEAD).transpose(1, 2)

    def logits(self, rows: Tensor) -> Tensor:
        return self.head(rows).flatten(0, 1)


def _module(path: str, *args: Any, **options: Any) -> tuple[Callable[[], nn.Module], Step]:
    """A module of Liger that is called with rows."""
    return lambda: _liger(path)(*args, **options), lambda op, rows, _tokens: op.module(rows)


def _called(step: Step) -> tuple[None, Step]:
    return None, step


def _of_logits(path: str, step: Step, **options: Any) -> tuple[Callable[[], nn.Module], Step]:
    return lambda: _liger(path)(**options), step


def _config() -> Any:
    return SimpleNamespace(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, hidden_act="silu", pretraining_tp=1, mlp_bias=False
    )


def _mlp(path: str, act: str = "silu", **options: Any) -> tuple[Callable[[], nn.Module], Step]:
    def make() -> nn.Module:
        config = _config()
        config.hidden_act = act
        made: nn.Module = _liger(path)(config, **options)
        return made

    return make, lambda op, rows, _tokens: op.module(rows)


def _angles(rows: Tensor, *first: int) -> tuple[Tensor, Tensor]:
    shape = (*first, rows.shape[1], HEAD)
    return torch.ones(shape, device=rows.device), torch.ones(shape, device=rows.device)


def _rope(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    heads = op.heads(rows)
    return _liger("transformers.functional.liger_rope")(heads, heads.clone(), *_angles(rows, 1))


def _mrope(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    heads = op.heads(rows)
    angles = _angles(rows, 3, len(rows))
    return _liger("transformers.functional.liger_qwen2vl_mrope")(
        heads, heads.clone(), *angles, [HEAD // 8, HEAD // 8, HEAD // 4]
    )


def _llama4_rope(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    heads = op.heads(rows).transpose(1, 2)
    turns = torch.ones(rows.shape[1], HEAD // 2, device=rows.device)
    return _liger("transformers.liger_llama4_text_rotary_pos_emb")(
        heads, heads.clone(), torch.complex(turns, turns)
    )


def _softened(op: Operator, rows: Tensor) -> tuple[Tensor, Tensor]:
    return op.logits(rows).log_softmax(-1), op.teacher(rows.detach()).flatten(0, 1).log_softmax(-1)


def _distilled(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    flat = rows.flatten(0, 1)
    return op.module(flat, op.head.weight, flat.detach(), op.teacher.weight, tokens.flatten())


def _preferred(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    return op.module(op.head.weight, rows, tokens)[0]


def _kto(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    labels = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    kl = torch.zeros(1, device=rows.device)
    return op.module(rows, op.head.weight, tokens, preference_labels=labels, kl=kl)[0]


def _grpo_chunked(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    mask, gains = torch.ones_like(tokens), torch.ones(len(rows), device=rows.device)
    return op.module(rows, op.head.weight, tokens, mask, gains)[0]


def _grpo(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    gains = torch.ones(len(rows), device=rows.device)
    logits = op.head(torch.cat([rows, rows[:, :1]], 1))
    return _liger("transformers.grpo_loss.triton_grpo_loss")(logits, None, None, tokens, gains, beta=0.0)[0]


def _moe(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    flat = rows.flatten(0, 1)
    chosen = torch.zeros(len(flat), 2, dtype=torch.int32, device=rows.device)
    inner = op.head.weight.view(2, WORDS // 2, WIDTH)  # of two experts, gates and ups
    outer = op.head.weight.view(2, WIDTH, WORDS // 2)[:, :, : WORDS // 4].contiguous()
    shares = torch.ones(chosen.shape, device=rows.device)
    return _liger("ops.LigerFusedMoEFunction").apply(flat, inner, outer, chosen, shares)


def _streams(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    return op.module(torch.stack([rows] * 4, 2).bfloat16())


def _depth(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    weight = op.first.weight[0]
    return _liger("transformers.functional.liger_attn_res")(torch.stack([rows] * 3), weight, weight)


def _ce_tvd(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    return op.module(op.logits(rows), op.teacher(rows.detach()).flatten(0, 1), tokens.flatten())


def _scaled(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    flat = rows.flatten(0, 1).bfloat16()
    apply = _liger("ops.LigerFusedLinearScaledCrossEntropyFunction").apply
    return apply(flat, op.head.weight.bfloat16(), tokens.flatten())


def _norm_of_both(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    return op.module(rows, op.first(rows))


def _modulated(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    return op.module(rows, rows.mean(1, keepdim=True), rows.mean(1, keepdim=True))


def _fused_gates(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    return _liger("ops.swiglu.LigerFusedGateUpSiLUMulFunction").apply(op.head(rows).flatten(0, 1))


def _shares(op: Operator, rows: Tensor, _tokens: Tensor) -> Any:
    student, teacher = _softened(op, rows)
    return op.module(student.exp(), teacher.exp())


def _loss(op: Operator, rows: Tensor, tokens: Tensor) -> Any:
    return op.module(op.logits(rows), tokens.flatten())


# A step by the file of Liger's operators that it is of, and whatever comes after a colon.
STEPS: dict[str, tuple[Callable[[], nn.Module] | None, Step]] = {
    "attn_res": _called(_depth),
    "cross_entropy": _of_logits("transformers.LigerCrossEntropyLoss", _loss),
    "dyt": _module("transformers.LigerDyT", WIDTH),
    "experimental:embedding": (
        lambda: _liger("transformers.experimental.LigerEmbedding")(WORDS, WIDTH),
        lambda op, rows, tokens: op.module(tokens) + rows,
    ),
    "fused_add_rms_norm": (lambda: _liger("transformers.LigerFusedAddRMSNorm")(WIDTH), _norm_of_both),
    "fused_ce_tvd": _of_logits("transformers.LigerFusedCETVDLoss", _ce_tvd),
    "fused_linear_cross_entropy": _of_logits(
        "transformers.LigerFusedLinearCrossEntropyLoss",
        lambda op, rows, tokens: op.module(op.head.weight, rows.flatten(0, 1), tokens.flatten()),
    ),
    "fused_linear_jsd": _of_logits("transformers.LigerFusedLinearJSD", _distilled),
    "fused_linear_kl_div": _of_logits(
        "transformers.LigerFusedLinearKLDivLoss",
        lambda op, rows, _tokens: op.module(
            rows.flatten(0, 1), op.head.weight, op.teacher(rows.detach()).flatten(0, 1).softmax(-1)
        ),
    ),
    "fused_linear_scaled_cross_entropy": _called(_scaled),
    "fused_moe": _called(_moe),
    "fused_neighborhood_attention": _module(
        "transformers.fused_neighborhood_attention.LigerFusedNeighborhoodAttention", WIDTH, HEADS
    ),
    "geglu": _mlp("transformers.LigerGEGLUMLP", "gelu_pytorch_tanh"),
    "group_norm": (
        lambda: _liger("transformers.group_norm.LigerGroupNorm")(ROWS, 4),
        lambda op, rows, _tokens: op.module(rows),
    ),
    "grpo_loss": _called(_grpo),
    "jsd": _of_logits("transformers.LigerJSD", lambda op, rows, _t: op.module(*_softened(op, rows))),
    "kl_div": _of_logits(
        "transformers.LigerKLDIVLoss",
        lambda op, rows, _t: op.module(*_softened(op, rows)),
        log_target=True,
    ),
    "layer_norm": _module("transformers.LigerLayerNorm", WIDTH),
    "llama4_rope": _called(_llama4_rope),
    "mhc": (
        lambda: _liger("transformers.LigerMHC")(nn.Identity(), hc=4, c=WIDTH),
        _streams,
    ),
    "mlp": (
        lambda: _liger("transformers.LigerMLP")(_config()).bfloat16(),
        lambda op, rows, _tokens: op.module(rows.bfloat16()),
    ),
    "modulated_rms_norm": (lambda: _liger("transformers.LigerModulatedRMSNorm")(WIDTH), _modulated),
    "multi_token_attention": (
        lambda: _liger("transformers.LigerMultiTokenAttention")(HEADS, HEADS, 3, padding=1),
        lambda op, rows, _tokens: op.module(op.heads(rows) @ op.heads(rows).mT),
    ),
    "poly_norm": _module("transformers.LigerPolyNorm"),
    "qwen2vl_mrope": _called(_mrope),
    "relu_squared": _module("transformers.LigerReLUSquared"),
    "rms_norm": _module("transformers.LigerRMSNorm", WIDTH),
    "rope": _called(_rope),
    "softmax": _module("transformers.LigerSoftmax"),
    "sparsemax": _module("transformers.LigerSparsemax", dim=-1),
    "swiglu": _mlp("transformers.LigerSwiGLUMLP"),
    "swiglu:fused": _called(_fused_gates),
    "tiled_mlp": _mlp("transformers.LigerTiledSwiGLUMLP", num_shards=2),
    "tvd": _of_logits("transformers.LigerTVDLoss", _shares),
    "vocab_parallel_cross_entropy": _of_logits(
        "transformers.LigerVocabParallelCrossEntropy",
        lambda op, rows, tokens: op.module(op.head(rows), tokens),
    ),
    **{
        f"chunked:{name}": _of_logits(f"chunked_loss.LigerFusedLinear{kind}Loss", step, **options)
        for name, kind, step, options in (
            ("cosine", "CosineSimilarity", _distilled, {}),
            ("cpo", "CPO", _preferred, {}),
            ("dpo", "DPO", _preferred, {"use_ref_model": False}),
            ("grpo", "GRPO", _grpo_chunked, {"use_ref_model": False, "beta": 0.0}),
            ("jsd", "JSD", _distilled, {}),
            ("kto", "KTO", _kto, {}),
            (
                "orpo",
                "ORPO",
                lambda op, rows, tokens: op.module(op.head.weight, rows, tokens, nll_target=tokens)[0],
                {},
            ),
            ("simpo", "SimPO", _preferred, {}),
        )
    },
}


def _batch(batch_size: int, device: torch.device) -> dict[str, Tensor]:
    return {
        "rows": torch.randn(batch_size, ROWS, WIDTH, device=device),
        "tokens": torch.ones(batch_size, ROWS, dtype=torch.int64, device=device),
    }


def _workload(name: str) -> Workload:
    return Workload(
        build_model=functools.partial(Operator, *STEPS[name]),
        make_batch=_batch,
        loss=lambda model, batch: model(**batch),
        name=name,
    )


def attribute(name: str) -> str:
    """Name of the workload of a step, as an attribute of this module."""
    return name.replace(":", "_of_")


globals().update({attribute(name): _workload(name) for name in STEPS})
