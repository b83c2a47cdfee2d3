"""Models of timm that were others when inference was measured.

Found by comparing numbers of parameters, those that the brackets state and those of timm 1.0.9, and the
norms of timm's sources: 0.9.12 and 1.0.8, with which PyTorch 2.1 and 2.4 were run, and later ones.
"""

from __future__ import annotations

from autofit_workers.spec.versions import parse_release

_FORMER_ARGUMENTS: dict[str, tuple[tuple[str, int | tuple[int, ...]], ...]] = {
    # "Technically a 28 layer ResNet" in 1.0.9's source; 50 layers since.
    "ecaresnext50t_32x4d": (("layers", (2, 2, 2, 2)),),
    # 86.54 M parameters in the brackets; its weights of today are for 11,221 classes.
    "vit_base_patch16_224_miil": (("num_classes", 1000),),
}


def former_arguments(model: str) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """What to give timm's constructor of today to get the model of 2022 to 2024."""
    return _FORMER_ARGUMENTS.get(model, ())


# Until May 2025 (38c5f3bc of timm) these had PyTorch's own LayerNorm, which knows nothing of `--fast-norm`.
_PLAIN_NORMS = ("beit", "deit", "vision_transformer")
_FAST_NORMS_SINCE = (2, 9)


def had_fast_norms(module: str | None, torch_release: str) -> bool:
    """Whether `--fast-norm` did anything to models of a module of timm in the runs with a PyTorch release."""
    return module not in _PLAIN_NORMS or parse_release(torch_release) >= _FAST_NORMS_SINCE
