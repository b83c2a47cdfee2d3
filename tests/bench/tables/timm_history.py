"""Models of timm that were others when the tables were made.

Found by comparing numbers of parameters: those that the brackets state, and those of timm 1.0.9.
"""

from __future__ import annotations

_FORMER_ARGUMENTS: dict[str, tuple[tuple[str, int | tuple[int, ...]], ...]] = {
    # "Technically a 28 layer ResNet" in 1.0.9's source; 50 layers since.
    "ecaresnext50t_32x4d": (("layers", (2, 2, 2, 2)),),
    # 86.54 M parameters in the brackets; its weights of today are for 11,221 classes.
    "vit_base_patch16_224_miil": (("num_classes", 1000),),
}


def former_arguments(model: str) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """What to give timm's constructor of today to get the model of 2022 to 2024."""
    return _FORMER_ARGUMENTS.get(model, ())
