"""Models of installed libraries as workloads: `torchvision:NAME`, `timm:NAME`, `hf:NAME-or-config`.

A file of `autofit_workers.workload.libraries` loads the models of one library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Where models come from.

    Attributes:
        prefix: of the references, before the colon.
        module: of ours; its `load(ref)` makes the workload.
        example: a reference.
        takes_files: whether a name may be a `config.json` or its folder.
        options: what may be said of a sample: of `input` and `classes` those that mean something.
        takes_task: whether what a model is trained for may be said.
        arguments: of those that may follow a name (`?KEY=VALUE&…`), what one of `options` says too, by that;
            None where none may follow.
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
    """The library that a reference names a model of; None where it is of another kind."""
    prefix, colon, name = text.partition(":")
    return LIBRARIES.get(prefix) if colon and name else None
