"""Libraries whose models are workloads: `torchvision:NAME`, `timm:NAME`, `hf:NAME-or-config`.

A file of `autofit_workers.workload.libraries` loads the models of one library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Model library, such as timm, whose models can be named as workloads.

    Attributes:
        prefix: beginning of its references, before the colon, such as `timm` in `timm:resnet50`.
        module: module of this package whose `load(ref)` makes the workload.
        example: an example of a reference.
        options: those of the options `input` and `classes` that have a meaning for its models.
        takes_files: whether a reference may name a `config.json` or its folder in place of a model.
        takes_task: whether `--task` may be given.
        arguments: for each of `options`, the arguments in a reference (`timm:NAME?KEY=VALUE&…`) that mean the
            same; None if references take no arguments.
    """

    prefix: str
    module: str
    example: str
    options: tuple[str, ...]
    takes_files: bool = False
    takes_task: bool = False
    arguments: Mapping[str, tuple[str, ...]] | None = None


LIBRARIES = {
    library.prefix: library
    for library in (
        Library(
            prefix="torchvision",
            module="autofit_workers.workload.libraries.of_torchvision",
            example="torchvision:resnet50",
            options=("input", "classes"),
        ),
        Library(
            prefix="timm",
            module="autofit_workers.workload.libraries.of_timm",
            example="timm:convnext_tiny",
            options=("input", "classes"),
            arguments={"input": ("img_size", "in_chans"), "classes": ("num_classes",)},
        ),
        Library(
            prefix="hf",
            module="autofit_workers.workload.libraries.of_transformers",
            example="hf:gpt2",
            options=("input",),
            takes_files=True,
            takes_task=True,
        ),
    )
}


def library_of(text: str) -> Library | None:
    """Library whose model a reference such as `timm:resnet50` names; None for other references."""
    prefix, colon, name = text.partition(":")
    return LIBRARIES.get(prefix) if colon and name else None
