"""The knob `base`: how the model's own weights are kept, before any adapter is put beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofit_workers.spec.knobs.knob import Knob, Part, one_of, or_none

FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # as PyTorch calls them


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchao:
    """Quantization of linear layers by `torchao.quantize_` with a configuration's defaults.

    Attributes:
        config: path of the configuration's class.
    """

    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bitsandbytes:
    """Quantization of linear layers by bitsandbytes.

    Attributes:
        layer: class in `bitsandbytes.nn` of the layer.
        weight: class in `bitsandbytes.nn` of the layer's weights.
        options: arguments of the layer other than its size.
        has_compute_type: whether the layer is also told the type to compute in.
        mark: attribute that transformers sets on a model with such layers, and peft looks for.
    """

    layer: str
    weight: str
    options: Mapping[str, bool | str | float]
    has_compute_type: bool
    mark: str


def _four_bits(kind: str, *, doubly: bool) -> Bitsandbytes:
    return Bitsandbytes(
        layer="Linear4bit",
        weight="Params4bit",
        options={"quant_type": kind, "compress_statistics": doubly},
        has_compute_type=True,
        mark="is_loaded_in_4bit",
    )


# `dq` quantizes the scales of the blocks too (Dettmers et al., 2023: QLoRA); 6.0 is the threshold of
# outliers that LLM.int8() and transformers' BitsAndBytesConfig take.
QUANTIZATIONS: dict[str, Bitsandbytes | Torchao] = {
    "nf4": _four_bits("nf4", doubly=False),
    "nf4-dq": _four_bits("nf4", doubly=True),
    "fp4": _four_bits("fp4", doubly=False),
    "int8": Bitsandbytes(
        layer="Linear8bitLt",
        weight="Int8Params",
        options={"has_fp16_weights": False, "threshold": 6.0},
        has_compute_type=False,
        mark="is_loaded_in_8bit",
    ),
    "int8-torchao": Torchao(config="torchao.quantization.Int8WeightOnlyConfig"),
    "fp8-torchao": Torchao(config="torchao.quantization.Float8WeightOnlyConfig"),
    "nf4-torchao": Torchao(config="torchao.prototype._nf4tensor_api.NF4WeightOnlyConfig"),
}
BASES = (*FLOATS, *QUANTIZATIONS)


def is_of_bitsandbytes(base: str | None) -> bool:
    """Whether bitsandbytes quantizes the weights under a value of the knob `base`.

    Args:
        base: a value of the option `--base`, such as `nf4`; None for weights as they are made.
    """
    return isinstance(QUANTIZATIONS.get(base or ""), Bitsandbytes)


_LEFT = {"fp32": 1.0, "fp16": 0.5, "bf16": 0.5, "nf4": 0.2, "nf4-dq": 0.2, "fp4": 0.2, "int8": 0.3}


def _leaves(value: str | None) -> dict[Part, float]:
    """Rough factors by which a value of the knob `base` shrinks parts of a step's memory; empty for none.

    Embeddings and heads are not quantized.

    Args:
        value: a value of the option `--base`.
    """
    return {} if value is None else {Part.WEIGHTS: _LEFT.get(value.partition("-torchao")[0], 0.3)}


KNOB = Knob(
    name="base",
    default=None,
    read=or_none(one_of(BASES)),
    help="Keep the model's own weights so, before an adapter is put beside them. nf4, nf4-dq (its scales "
    "quantized too), fp4 and int8 quantize linear layers by bitsandbytes, those of -torchao by torchao; "
    "what is trained is an adapter.",
    values=BASES,
    metavar="TYPE",
    is_searchable=True,
    levers=("bf16", "int8", "nf4"),
    degrees={"int8": 1, "nf4": 2},
    leaves=_leaves,
    words={None: "the model's own weights"},
    phrase="{} weights",
)
