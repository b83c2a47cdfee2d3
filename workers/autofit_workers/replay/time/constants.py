"""Constants of kernel classes from constants.toml: the shares of a device's limits that kernels reach."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit_workers.replay.time.products import ProductConstants
from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import Self, read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConstants:
    """Share of a card's peak FLOP per second that grouped convolutions reach.

    The share is rate · width^width_power · groups^groups_power, with `width` channels in a group.

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
        vector: for kernels that compute outside tensor cores and not as matrix products, such as depthwise
            convolutions: the share of the card's float32 FLOP per second that they reach with filters of
            3×3. None for others.
        taps_power: for the same kernels, the exponent p in share · (9 / elements of the filter)^p.
        grouped: constants of grouped convolutions; None for other classes.
        copied: share of the memory's bytes per second at which operands are copied into another layout before
            the kernel; None if they are not.
        elements_per_clock: most elements that a multiprocessor reads and writes in a clock cycle, for kernels
            that access single elements; 0 if only the memory limits them.
        least_seconds: shortest time of a kernel whose threads have to wait for each other.
        cached: share of the kernel's bytes that it finds in the cache, left there by the kernel before, as
            long as they fit.
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
    """Seconds that the host (Python, autograd engine, dispatcher) takes to launch the parts of a step.

    Attributes:
        call: seconds of an operator that Python calls, in the forward pass or in an optimizer's loop.
        backward_call: seconds of an operator that the autograd engine calls.
        view: seconds of an operator that launches nothing, such as a view.
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
        since_pytorch_2: factors on predicted times, by class. The constants are fitted to PyTorch 1.12; a
            factor is the kernel's time in PyTorch 2 over the time by the constants.
        digest: SHA-256 of the text that the constants were read from.
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
    read = Constants.from_dict(read_toml(text))
    return dataclasses.replace(read, digest=hashlib.sha256(text.encode()).hexdigest())
