"""Constants of kernel classes from constants.toml: the shares of a device's limits that kernels reach."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit_workers.replay.time.attention import DecodeConstants, PromptConstants
from autofit_workers.replay.time.products import ProductConstants
from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import Self, read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedConstants:
    """Share of a card's peak FLOP per second that grouped convolutions reach.

    The share is rate · width^width_power · groups^groups_power · (taps / 9)^taps_power, with `width` channels
    in a group and `taps` elements of a filter, times one of the factors below where it applies.

    Attributes:
        rate: the share for one group of one channel, with filters of 3×3.
        width_power: exponent of the channels of a group.
        groups_power: exponent of the number of groups.
        most: the largest share.
        taps_power: exponent of the elements of a filter.
        own: factor for groups that cuDNN has kernels of their width for, without dilation.
        own_widths: channels of such groups.
        own_multiple: number that the number of such groups is a multiple of.
        strided: factor for other groups, if the convolution has a stride.
    """

    rate: float
    width_power: float
    groups_power: float
    most: float
    taps_power: float = 0.0
    own: float = 1.0
    own_widths: tuple[int, ...] = ()
    own_multiple: int = 1
    strided: float = 1.0

    def share(
        self, width: int, groups: int, *, num_taps: int, is_strided: bool = False, is_dilated: bool = False
    ) -> float:
        """Share of the peak, for a number of groups of so many channels each."""
        share = self.rate * width**self.width_power * groups**self.groups_power
        share *= float((num_taps / 9) ** self.taps_power)
        if width in self.own_widths and groups % self.own_multiple == 0 and not is_dilated:
            share *= self.own
        elif is_strided:
            share *= self.strided
        return float(min(share, self.most))


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
        is_rated: whether the efficiency of arithmetic is a share of `Speeds.rated_flops`, rather than of the
            FLOP per second that cards of the architecture sustain.
        launch: seconds of a launch; None for `Speeds.launch_seconds`.
        fill_seconds: seconds until the memory delivers, for operands that are not in the cache.
        kept: share of the last cache that holds operands which an earlier kernel left there.
        kept_per_clock: bytes that a multiprocessor reads from the cache in a clock cycle.
        prompt, decode: constants of fused attention with many queries, and with one; None for others.
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
    is_rated: bool = False
    launch: float | None = None
    fill_seconds: float = 0.0
    kept: float = 0.0
    kept_per_clock: float = 0.0
    prompt: PromptConstants | None = None
    decode: DecodeConstants | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConstants:
    """Seconds that the host (Python, autograd engine, dispatcher) takes to launch the parts of a step.

    Attributes:
        call: seconds of an operator that Python calls, in the forward pass or in an optimizer's loop.
        backward_call: seconds of an operator that the autograd engine calls.
        view: seconds of an operator that launches nothing, such as a view.
        launch: seconds of each kernel beyond the first of an operator.
        step: seconds of a step, whatever its operators.
        generation: how many times as long all that takes in a text generation by transformers.
    """

    call: float
    backward_call: float
    view: float
    launch: float
    step: float
    generation: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of all kernel classes and of the host, from which times are predicted.

    Attributes:
        classes: constants by class of kernels, or by class and variant: `convolution fprop channels_last`.
        host: launch times of the host.
        since_pytorch_2: factors on predicted times, by class. The constants are fitted to PyTorch 1.12; a
            factor is the kernel's time in PyTorch 2 over the time by the constants.
        newer_classes: constants by class and variant, fitted to PyTorch 2, that take the place of `classes`
            there; no factor is on them.
        older_products: factors on the arithmetic of products with an older cuBLAS, by class.
        digest: SHA-256 of the text that the constants were read from.
    """

    classes: Mapping[str, ClassConstants]
    host: HostConstants
    since_pytorch_2: Mapping[str, float] = dataclasses.field(default_factory=dict)
    newer_classes: Mapping[str, ClassConstants] = dataclasses.field(default_factory=dict)
    older_products: Mapping[str, float] = dataclasses.field(default_factory=dict)
    digest: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Makes the constants from the data of constants.toml."""
        return cls(
            classes=_classes(data["classes"]),
            host=HostConstants(**data["host"]),
            since_pytorch_2=data.get("since_pytorch_2", {}),
            newer_classes=_classes(data.get("newer_classes", {})),
            older_products=data.get("older_products", {}),
        )


def _classes(data: Mapping[str, Any]) -> dict[str, ClassConstants]:
    classes = {}
    for name, values in data.items():
        parts = {key: _PARTS[key](**each) for key, each in values.items() if key in _PARTS}
        classes[name] = ClassConstants(**{**values, **parts})
    return classes


def _grouped(*, own_widths: Sequence[int] = (), **values: Any) -> GroupedConstants:
    return GroupedConstants(own_widths=tuple(own_widths), **values)


_PARTS: Mapping[str, Callable[..., Any]] = {
    "product": ProductConstants,
    "grouped": _grouped,
    "prompt": PromptConstants,
    "decode": DecodeConstants,
}


@functools.cache
def constants() -> Constants:
    """Constants that predictions use, read from constants.toml once."""
    text = text_of("constants.toml")
    read = Constants.from_dict(read_toml(text))
    return dataclasses.replace(read, digest=hashlib.sha256(text.encode()).hexdigest())
