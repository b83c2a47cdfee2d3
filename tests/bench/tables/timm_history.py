"""Models of timm that were others when the tables were made.

Found by comparing the parameters of every model of the tables in timm 1.0.9 and 1.0.31.
"""

from __future__ import annotations

_FORMER_ARGUMENTS = {
    # "Technically a 28 layer ResNet" in 1.0.9's source; 50 layers since.
    "ecaresnext50t_32x4d": (("layers", (2, 2, 2, 2)),),
}


def former_arguments(model: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What to give timm's constructor of today to get the model of 2022 to 2024."""
    return _FORMER_ARGUMENTS.get(model, ())
