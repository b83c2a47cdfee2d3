"""The constants of kernels' classes, of constants.toml: how near to its limits a device comes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from autofit_workers.replay.time.products import ProductConstants
from autofit_workers.replay.time.tables import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConstants:
    """How near to the peak convolutions in groups come: rate · width^width_power · groups^groups_power.

    Attributes:
        rate: of one group of one channel.
        width_power: by the channels of a group.
        groups_power: by the number of groups.
        most: that none exceeds.
    """

    rate: float
    width_power: float
    groups_power: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassConstants:
    """What is known of a class of kernels, or of a variant of it.

    Attributes:
        bandwidth: the share of the memory's bytes a second that it moves.
        product: of the products that it makes; None where it makes none.
        vector: the share of the arithmetic outside tensor cores that it does, where it makes its products
            there and not as products of matrices; of windows of 3×3.
        taps_power: how that share falls with the elements of the window, over 9.
        grouped: of convolutions in groups; None of others.
        copied: the share of the memory's bytes a second at which operands are copied into another order.
        elements_per_clock: that a unit reads and writes at most in a clock, in kernels that go through them
            one by one; 0 where nothing but the memory limits it.
        least_seconds: that a kernel takes however little it has to do: its threads wait for each other.
        cached: the share of its bytes that the kernel before it has left in the cache, where all fit.
    """

    bandwidth: float
    product: ProductConstants | None = None
    vector: float | None = None
    taps_power: float = 0.0
    grouped: GroupedConstants | None = None
    copied: float | None = None
    elements_per_clock: float = 0.0
    least_seconds: float = 0.0
    cached: float = 0.0


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
        since_pytorch_2: by class, seconds with PyTorch 2 over those by the constants, which are of 1.12.
        digest: of what they were read from.
    """

    classes: Mapping[str, ClassConstants]
    host: HostConstants
    since_pytorch_2: Mapping[str, float] = dataclasses.field(default_factory=dict)
    digest: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As constants.toml has them."""
        classes = {}
        for name, values in data["classes"].items():
            product = values.get("product")
            product = None if product is None else ProductConstants(**product)
            grouped = values.get("grouped")
            grouped = None if grouped is None else GroupedConstants(**grouped)
            classes[name] = ClassConstants(**{**values, "product": product, "grouped": grouped})
        newer = data.get("since_pytorch_2", {})
        return cls(classes=classes, host=HostConstants(**data["host"]), since_pytorch_2=newer)


@functools.cache
def constants() -> Constants:
    """Those that predictions are made with."""
    text = text_of("constants.toml")
    read = Constants.from_dict(tomllib.loads(text))
    return dataclasses.replace(read, digest=hashlib.sha256(text.encode()).hexdigest())
