"""Calibration of predicted peaks' intervals by the errors of predictions against real runs.

A predicted peak is an interval for two reasons. The workspaces of convolutions are uncertain: they depend on
the plan that cuDNN runs, and the allocator may find room for the largest or may have to add a segment. And no
prediction is exact: the interval is widened by the residuals, which are the errors of predictions against
real runs of the same class of models.

        low        likely              high              worst
    ─────┤←─────────┤├──────────────┼─────→├──────────────┼───── reserved peak
         residual    a share of the  residual     all workspaces at
         (2.5 %)     largest         (97.5 %)     their largest plan
                     workspace

The share of the largest workspace that is added to the high end was fitted to real runs, which exist for some
cards only. On other cards, and if no card is named, plans are less certain: there the interval reaches from a
replay with the smallest workspaces to one with the largest, widened by the largest residuals of the class. In
a step without convolutions, everything that depends on the card is known, so its residuals are the same
for all cards.

The residuals are shares of the whole reserved peak, because it is the reserved peak that is measured, that is
compared with the budget, and that varies between repeated runs. A share of the activations would be closer to
the cause, but it grows without bound for small batches, which have few activations. `data/residuals.toml`
holds the residuals; `tests/bench/calibrate.py` writes it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.pythons import Self, StrEnum, read_toml
from autofit_workers.spec.trace import Category, Trace
from autofit_workers.spec.vendors import Vendor
from autofit_workers.spec.work import ConvPass

SCHEMA = "autofit.residuals/2"
ANY = "any"
_SHARED_BY_A_VENDOR = frozenset(
    vendor.facts.residual_cards for vendor in Vendor if vendor.facts.residual_cards is not None
)


class ModelClass(StrEnum):
    """Class of a model by the operators that make its activations; prediction errors differ by class.

    `DEPTHWISE` convolutions run on PyTorch's own kernels, other `GROUPED` ones on cuDNN's. In models of the
    class `WITHOUT_CONVOLUTIONS`, shapes determine every size; models with cuDNN's recurrent layers, or with
    operators of unknown scratch memory, are not of that class. `OTHER` is a model that fits no other class.
    """

    DENSE = "convolutional-dense"
    GROUPED = "convolutional-grouped"
    DEPTHWISE = "convolutional-depthwise"
    ATTENTION = "attention"
    WITHOUT_CONVOLUTIONS = "without-convolutions"
    RECURRENT = "recurrent"
    OTHER = "other"


# Attention makes a twentieth of a transformer's activations, and less than a hundredth of those of a small
# language model, which has large logits; a classifier's softmax makes far less. The convolution of a patch
# embedding, which does not make a model convolutional, makes some thousandths.
_LEAST_SHARE, _LEAST_CONVOLUTION_SHARE = 0.002, 0.01
# Grouped layers make a quarter of the convolutions' output bytes in ResNeXt, and half of them in MobileNet.
_LEAST_GROUPED_SHARE = 0.1
_ATTENTION = ("scaled_dot_product", "flash_attention", "flash_attn", "efficient_attention", "aten._softmax")
_RECURRENT = ("rnn", "lstm", "gru")
# Operators whose scratch memory `autofit_workers/tracing/recording/hidden.py` leaves out.
_UNKNOWN_SCRATCH = ("aten.sort", "aten.topk", "aten.cum", "aten._unique", "aten.unique", "aten._fft")
# Operators of other phases than forward: if the workload has a step function of its own, the trace counts all
# that it allocates as activations.
_NOT_FORWARD = ("backward", "aten._foreach_", "aten._fused_adam", "aten._fused_sgd")


def classify(trace: Trace) -> ModelClass:
    """Class of a model by the operators that produce its activations, regardless of its name."""
    dense, grouped, depthwise = _convolution_output_bytes(trace)
    convolutions = dense + grouped + depthwise
    total = attention = recurrent = unknown = 0
    for allocation in trace.allocations:
        if allocation.category is not Category.ACTIVATION or _names(_NOT_FORWARD, allocation.operator):
            continue
        total += allocation.num_bytes
        if _names(_ATTENTION, allocation.operator):
            attention += allocation.num_bytes
        elif _names(_RECURRENT, allocation.operator):
            recurrent += allocation.num_bytes
        elif _names(_UNKNOWN_SCRATCH, allocation.operator):
            unknown += allocation.num_bytes
    if not trace.convolves and max(recurrent, unknown) <= _LEAST_SHARE * total:
        return ModelClass.WITHOUT_CONVOLUTIONS
    if max(attention, recurrent) >= max(convolutions, _LEAST_SHARE * total, 1):
        return ModelClass.ATTENTION if attention > recurrent else ModelClass.RECURRENT
    if convolutions < max(_LEAST_CONVOLUTION_SHARE * total, 1):
        return ModelClass.OTHER
    if grouped + depthwise < _LEAST_GROUPED_SHARE * convolutions:
        return ModelClass.DENSE
    return ModelClass.GROUPED if grouped > depthwise else ModelClass.DEPTHWISE


def _names(parts: tuple[str, ...], operator: str) -> bool:
    return any(part in operator for part in parts)


def _convolution_output_bytes(trace: Trace) -> tuple[int, int, int]:
    """Bytes output by dense, grouped and depthwise convolutions in the forward pass, in this order."""
    dense = grouped = depthwise = 0
    for allocation in trace.allocations:
        conv = allocation.convolution
        if conv is None or allocation.operator != "aten.convolution":
            continue
        # A trace has a transposed convolution as the data gradient of a plain one.
        shape = conv.input_shape if conv.conv_pass is ConvPass.DGRAD else conv.output_shape
        num_bytes = math.prod(shape) * conv.element_bytes
        if conv.groups == 1:
            dense += num_bytes
        elif conv.groups == conv.input_shape[1]:
            depthwise += num_bytes
        else:
            grouped += num_bytes
    return dense, grouped, depthwise


def generation(name: str) -> str:
    """Name of the group of cards, such as `hopper`, for which prediction errors are kept together.

    It is a generation, such as `hopper`, or all cards of a vendor with few measurements.

    Args:
        name: name of an architecture, such as `sm_90`.
    """
    of_card = Architecture.of(name)
    if (of_all := of_card.vendor.facts.residual_cards) is not None:
        return of_all
    if of_card.capability < 70:
        return "pascal-or-older"
    names = {7: "volta-turing", 8: "ampere-ada", 9: "hopper"}
    return names.get(of_card.capability // 10, "blackwell-or-newer")


def cards_of(model_class: ModelClass, name: str) -> str:
    """Name of the group of cards whose past prediction errors apply to a model class on a card.

    It is the card's `generation`, or `any` for models without convolutions, whose errors do not depend on the
    card (except on cards of a vendor that are all taken together).

    Args:
        name: name of the card's architecture, such as `sm_90`.
    """
    cards = generation(name)
    is_any = model_class is ModelClass.WITHOUT_CONVOLUTIONS and cards not in _SHARED_BY_A_VENDOR
    return ANY if is_any else cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Widening of predicted peaks to a 95 % interval, from past errors for a class of models.

    Attributes:
        model_class: the class of the step's model.
        cards: name of the cards that the errors are from: a `generation`, or `any`. If the predicted card may
            be of several generations, all of them, or only those without real runs.
        low_share, high_share: what is added to the low and to the high end of the interval, as a share of the
            reserved peak at that end; `low_share` is 0 or negative, `high_share` 0 or positive.
        workspace_share: share of the largest scratch memory (workspace) of any one convolution that is added
            to the high end before it is widened.
        spans: what is widened: if True, the peaks with the smallest and with the largest workspaces; if
            False, the likely peak in both directions.
        num_rows: number of real runs that the shares come from; 0 if there are none, and wider shares are
            assumed.
        num_families: number of model families among them.
        sources: names of the tables that hold these runs.
        observed: peaks that the user observed for this workload and that changed the shares, in words.
    """

    model_class: ModelClass
    cards: str
    low_share: float
    high_share: float
    workspace_share: float = 0.0
    spans: bool = True
    num_rows: int = 0
    num_families: int = 0
    sources: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Sentence that tells what the width of the interval is based on."""
        span = f"{100 * self.low_share:+.1f}% and {100 * self.high_share:+.1f}%"
        what = f"{self.model_class} models on {self.cards} cards"
        if self.model_class is ModelClass.WITHOUT_CONVOLUTIONS:
            what = "steps without convolutions, of which shapes decide every size"
        if self.num_rows and self.cards in _SHARED_BY_A_VENDOR:
            what += ", all of them on NVIDIA's cards"
        if self.observed:
            plural = "" if len(self.observed) == 1 else "s"
            rest = f"the errors of real runs of {what}" if self.num_rows else "an assumption"
            return (
                f"95% range: widened by {span}: {len(self.observed)} observed peak{plural} of this workload "
                f"({'; '.join(self.observed)}) and {rest}"
            )
        if self.num_rows:
            return (
                f"95% range: {self._span_in_words}widened by {span}, the errors of "
                f"{self.num_rows} real runs of {what} ({', '.join(self.sources)})"
            )
        return (
            f"no measurements of {what} exist: the range is {self._span_in_words}widened by {span} (assumed)"
        )

    @property
    def _span_in_words(self) -> str:
        if self.model_class is ModelClass.WITHOUT_CONVOLUTIONS:
            return ""
        span = "from the smallest to the largest workspaces, " if self.spans else ""
        if not self.workspace_share:
            return span
        return f"{span}with {100 * self.workspace_share:.0f}% of the largest workspace on top, "

    def on_top(self, workspace_bytes: int) -> int:
        """Bytes that are added to the high end before widening, for the largest convolution workspace."""
        return math.ceil(Fraction(str(self.workspace_share)) * workspace_bytes)

    def low_end(self, num_bytes: int) -> int:
        """Low end of the interval in bytes, from a simulated peak.

        Args:
            num_bytes: peak with the smallest workspaces or, if `spans` is False, the likely one.
        """
        return math.floor(num_bytes * self._factor(self.low_share))

    def high_end(self, num_bytes: int) -> int:
        """High end of the interval in bytes, from a simulated peak.

        Args:
            num_bytes: peak with the largest workspaces or, if `spans` is False, the likely one, plus
                `on_top`.
        """
        return math.ceil(num_bytes * self._factor(self.high_share))

    def within_low_end(self, limit_bytes: int) -> int:
        """Largest peak in bytes whose `low_end` is within a limit."""
        return math.ceil((limit_bytes + 1) / self._factor(self.low_share)) - 1

    def within_high_end(self, limit_bytes: int) -> int:
        """Largest peak in bytes whose `high_end` is within a limit."""
        return math.floor(limit_bytes / self._factor(self.high_share))

    def _factor(self, share: float) -> Fraction:
        return 1 + Fraction(str(share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Past errors of predicted peaks against real runs, by class of model and generation of cards.

    Attributes:
        measured: widening of intervals (`Calibration`) for each pair of model class and cards with real runs.
        factor, extra_share: for a class without real runs, intervals are widened by the widest shares of all
            classes, multiplied by `factor` and increased by `extra_share`.
        digest: hash of the file's text, by which stored searches tell which errors they rest on.
    """

    measured: Mapping[tuple[ModelClass, str], Calibration]
    factor: float
    extra_share: float
    digest: str = ""

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Reads past errors of predictions from the text of a TOML file.

        Raises:
            ValueError: the file has another schema.
        """
        data = read_toml(text)
        if data.get("schema") != SCHEMA:
            raise ValueError(f"expected residuals of schema {SCHEMA}, got {data.get('schema')!r}")
        entries = [_calibration(entry) for entry in data["residuals"]]
        return cls(
            measured={(entry.model_class, entry.cards): entry for entry in entries},
            factor=data["unmeasured"]["factor"],
            extra_share=data["unmeasured"]["extra_share"],
            digest=hashlib.sha256(text.encode()).hexdigest(),
        )

    def of(self, model_class: ModelClass, *architectures: str) -> Calibration:
        """Widening of intervals for a class of models, on a card of one of the given architectures.

        Several architectures are given if the card is not known. The result then has the widest shares of all
        of them; `num_rows` is 0 if one of them has no real runs.
        """
        generations = dict.fromkeys(cards_of(model_class, architecture) for architecture in architectures)
        each = [self._of(model_class, cards) for cards in generations]
        if len(each) == 1:
            is_one = len(set(architectures)) == 1
            return each[0] if is_one else dataclasses.replace(each[0], spans=True)
        unknown = [one for one in each if not one.num_rows]
        return Calibration(
            model_class=model_class,
            cards=" or ".join(one.cards for one in unknown or each),
            low_share=min(one.low_share for one in each),
            high_share=max(one.high_share for one in each),
            workspace_share=max(one.workspace_share for one in each),
            num_rows=0 if unknown else sum(one.num_rows for one in each),
            num_families=0 if unknown else max(one.num_families for one in each),
            sources=() if unknown else tuple(dict.fromkeys(name for one in each for name in one.sources)),
        )

    def _of(self, model_class: ModelClass, cards: str) -> Calibration:
        """Widening of intervals for a class of models, on the cards of one generation."""
        measured = self.measured.get((model_class, cards))
        if measured is None and cards in _SHARED_BY_A_VENDOR:
            # Without convolutions, shapes determine every size: errors depend on the model, not on the card.
            of_any = self.measured.get((model_class, ANY))
            measured = None if of_any is None else dataclasses.replace(of_any, cards=cards)
        if measured is not None:
            return measured
        known = list(self.measured.values())
        near = [entry for entry in known if entry.model_class is model_class]
        low = min((entry.low_share for entry in near or known), default=0.0)
        high = max((entry.high_share for entry in near or known), default=0.0)
        if not near:
            low, high = low * self.factor - self.extra_share, high * self.factor + self.extra_share
        return Calibration(
            model_class=model_class,
            cards=cards,
            low_share=round(low, 4),
            high_share=round(high, 4),
            workspace_share=max((entry.workspace_share for entry in near or known), default=0.0),
        )


def _calibration(entry: dict[str, Any]) -> Calibration:
    fields = {**entry, "model_class": ModelClass(entry["model_class"]), "sources": tuple(entry["sources"])}
    return Calibration(**fields)


@functools.cache
def shipped_residuals() -> Residuals:
    """Past errors of predicted peaks, as shipped with this version of autofit."""
    text = importlib.resources.files("autofit").joinpath("data/residuals.toml").read_text(encoding="utf-8")
    return Residuals.from_toml(text)
