"""The knob `precision`: the types that a step computes in."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Cost, Knob, Part, one_of

PRECISIONS = ("fp32", "ieee-fp32", "tf32", "amp-fp16", "amp-bf16", "bf16")

# From tensor cores down to fp32 without them. Before Ampere bfloat16 has no tensor cores, and TF32 is
# not there (NVIDIA's white papers on Volta, Turing and Ampere).
_BFLOAT16_SINCE = 80
_SINCE_AMPERE = {"bf16": 0, "amp-bf16": 1, "amp-fp16": 1, "tf32": 2, "fp32": 3, "ieee-fp32": 4}
_BEFORE_AMPERE = {"amp-fp16": 0, "tf32": 1, "fp32": 1, "ieee-fp32": 1}
_TF32_LINES = {
    "ieee-fp32": (
        "torch.backends.cudnn.allow_tf32 = False",
        'torch.set_float32_matmul_precision("highest")  # the default',
    ),
    "tf32": (
        "torch.backends.cudnn.allow_tf32 = True  # the default",
        'torch.set_float32_matmul_precision("high")',
    ),
}
_AUTOCAST_LEAVES = 0.6  # of activations: half of those of matrix products is left, all of those of norms


def _leaves(value: str) -> dict[Part, float]:
    if value == "bf16":
        return dict.fromkeys(Part, 0.5)
    return {Part.ACTIVATIONS: _AUTOCAST_LEAVES} if value.startswith("amp-") else {}


def _cost(value: str, capability: int | None) -> float | None:
    """Place of a precision in the order of step times on a card; None on the CPU or if unknown.

    On the CPU, costs depend on oneDNN and on the vector units, which differ too much from machine to machine.

    Args:
        value: a value of the option `--precision`.
        capability: compute capability of the card, 10 × major + minor; None for the CPU.
    """
    if capability is None:
        return None
    return (_SINCE_AMPERE if capability >= _BFLOAT16_SINCE else _BEFORE_AMPERE).get(value)


KNOB = Knob(
    name="precision",
    default="fp32",
    read=one_of(PRECISIONS),
    help="fp32 is PyTorch's default: TF32 in convolutions, not in matrix products. ieee-fp32 uses TF32 "
    "nowhere, tf32 in both. amp-fp16 (with a GradScaler) and amp-bf16 are autocast; bf16 converts model and "
    "inputs.",
    values=PRECISIONS,
    is_searchable=True,
    is_common=True,
    levers=("amp-bf16", "amp-fp16", "bf16"),  # those that only turn TF32 on or off change no size
    leaves=_leaves,
    script_lines=lambda value: _TF32_LINES.get(value, ()),
    cost=Cost(rank=4, of=_cost, names_fast_kernels=True),
)
