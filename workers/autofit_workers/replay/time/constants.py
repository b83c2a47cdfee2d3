"""Constants of kernel classes from constants.toml: the shares of a device's limits that kernels reach."""

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
    """Share of the peak that grouped convolutions reach: rate · width^width_power · groups^groups_power.

    Attributes:
        rate: the share for one group of one channel.
        width_power: exponent of the channels of a group.
        groups_power: exponent of the number of groups.
        most: the largest share.
    """

    rate: float
    width_power: float
    groups_power: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassConstants:
    """Constants that predict the times of a class of kernels, or of a variant of the class.

    Attributes:
        bandwidth: share of the memory's bytes per second that kernels of the class reach.
        product: constants of their matrix products; None for classes without products.
        vector: share of the FLOP per second outside tensor cores that kernels reach which make their products
            there and not as matrix products, for windows of 3×3.
        taps_power: exponent with which that share falls with the elements of the window, over 9.
        grouped: constants of grouped convolutions; None for other classes.
        copied: share of the memory's bytes per second at which operands are copied into another order.
        elements_per_clock: most elements that a multiprocessor reads and writes in a clock, for kernels that
            access single elements; 0 if only the memory limits them.
        least_seconds: shortest time of a kernel, whose threads wait for each other.
        cached: share of its bytes that the kernel before it left in the cache, if all of them fit there.
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
    """Seconds that the host takes to launch the parts of a step.

    Attributes:
        call: seconds of an operator that Python calls, in the forward pass or in an optimizer's loop.
        backward_call: seconds of an operator that the autograd engine calls.
        view: seconds of an operator that launches nothing.
        launch: seconds of each kernel beyond the first of an operator.
        step: seconds of a step, whatever its operators.
    """

    call: float
    backward_call: float
    view: float
    launch: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of all kernel classes and of the host, from which times are predicted.

    Attributes:
        classes: constants by class of kernels, or by class and variant: `convolution fprop channels_last`.
        host: launch times of the host.
        since_pytorch_2: seconds with PyTorch 2 over those by the constants, which are for 1.12, by class.
        digest: SHA-256 of the text that they were read from.
    """

    classes: Mapping[str, ClassConstants]
    host: HostConstants
    since_pytorch_2: Mapping[str, float] = dataclasses.field(default_factory=dict)
    digest: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Makes the constants from the data of constants.toml."""
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
    """Constants that predictions use, read from constants.toml once."""
    text = text_of("constants.toml")
    read = Constants.from_dict(tomllib.loads(text))
    return dataclasses.replace(read, digest=hashlib.sha256(text.encode()).hexdigest())
