"""The constants of kernels' classes, of constants.toml: how near to its limits a device comes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from workers.predict.time.products import ProductConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassConstants:
    """What is known of a class of kernels, or of a variant of it.

    Attributes:
        bandwidth: the share of the memory's bytes a second that it moves.
        product: of the products that it makes; None where it makes none.
        extra_bytes: moved beside what it has to, as a share of that: copies into another layout.
    """

    bandwidth: float
    product: ProductConstants | None = None
    extra_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConstants:
    """What the host takes to launch a step, in seconds.

    Attributes:
        call: of an operator of the forward pass or of an optimizer's loop, by Python.
        backward_call: of one that the autograd engine calls.
        view: of an operator that launches nothing.
        launch: of each kernel beyond the first of an operator.
        step: of what a step takes whatever its operators.
    """

    call: float
    backward_call: float
    view: float
    launch: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All constants.

    Attributes:
        classes: by a class of kernels, or by class and variant: `convolution fprop channels_last`.
        host: of the host that launches.
        digest: of what they were read from.
    """

    classes: Mapping[str, ClassConstants]
    host: HostConstants
    digest: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As constants.toml has them."""
        classes = {}
        for name, values in data["classes"].items():
            product = values.get("product")
            classes[name] = ClassConstants(
                bandwidth=values["bandwidth"],
                extra_bytes=values.get("extra_bytes", 0.0),
                product=None if product is None else ProductConstants(**product),
            )
        return cls(classes=classes, host=HostConstants(**data["host"]))


@functools.cache
def constants() -> Constants:
    """Those that predictions are made with."""
    text = importlib.resources.files(__package__).joinpath("constants.toml").read_text(encoding="utf-8")
    read = Constants.from_dict(tomllib.loads(text))
    return dataclasses.replace(read, digest=hashlib.sha256(text.encode()).hexdigest())
