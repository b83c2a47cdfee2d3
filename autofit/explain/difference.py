"""Explains, term by term, the difference between a layer summary's total and the simulated peak.

    summary ─ items that take no memory ─ + memory it omits ─▶ allocated peak
                                    + memory that the allocator holds unused ─▶ reserved peak ─ + context ─▶
                                    device

Every term is a sum over allocations of the trace, so the terms add up to the byte.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autofit.explain.profile import Profile, alive_at, peak_position, phase_of, phases
from autofit.explain.summary import ELEMENT_BYTES, OUTPUT_COPIES, Summary, SummaryRow
from autofit_workers.spec.trace import Allocation, Category

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One reason for the difference between a layer summary and the simulated peak, in bytes.

    Attributes:
        name: the reason, as a short phrase.
        num_bytes: bytes by which the peak is larger for this reason; negative if it is smaller.
        note: details of the reason, such as the operators that it is about; may be empty.
    """

    name: str
    num_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Sum of terms that leads from a layer summary's total bytes to the peaks of a simulated step.

    The summary and all `terms` add up to the allocated peak. With `unused_bytes` it is the reserved peak, and
    with `context_bytes` the device peak.

    Attributes:
        summary_bytes: total of the layer summary, as torchsummary computes it.
        terms: reasons for the difference between the summary and the allocated peak.
        unused_bytes: bytes that the allocator reserves but that no tensor uses.
        context_bytes: bytes that the process holds on the card outside the allocator.
        device_bytes: bytes that nvidia-smi would show for the process.
        peak_phase: phase in which the allocated peak is reached, such as `backward of step 2`.
    """

    summary_bytes: int
    terms: tuple[Term, ...]
    allocated_bytes: int
    unused_bytes: int
    reserved_bytes: int
    context_bytes: int
    device_bytes: int
    peak_phase: str


def explain_difference(summary: Summary, profile: Profile) -> Difference:
    """Terms that explain why a layer summary's total differs from the peaks of a simulated step.

    Args:
        summary: layer summary.
        profile: memory of the steps, made from the same trace (recorded step) as the summary.
    """
    position = peak_position(profile)
    phase = phase_of(profile, position)
    account = _Account(summary, profile, alive=alive_at(profile, position), step=phase.step)
    terms = tuple(term for term in account.terms() if term.num_bytes)
    allocated, reserved = profile.peak_allocated_bytes, profile.peak_reserved_bytes
    assert summary.total_bytes + sum(term.num_bytes for term in terms) == allocated
    return Difference(
        summary_bytes=summary.total_bytes,
        terms=terms,
        allocated_bytes=allocated,
        unused_bytes=reserved - allocated,
        reserved_bytes=reserved,
        context_bytes=profile.context_bytes,
        device_bytes=reserved + profile.context_bytes,
        peak_phase=phase.in_words,
    )


@dataclass(slots=True)
class _Listed:
    """Bytes of layer outputs in a summary, divided into first uses and repeats of an allocation.

    Attributes:
        first: bytes that the summary counts for each output with memory of its own, by the output's
            allocation.
        again: bytes of outputs that share memory with an earlier one (views, in place), by class of layer.
        num_again: number of such outputs, by class of layer.
        passed_on: bytes of outputs that a layer with children takes from one of them, by class of layer.
        num_passed_on: number of such outputs, by class of layer.
    """

    first: dict[int, int] = field(default_factory=dict)
    again: collections.Counter[str] = field(default_factory=collections.Counter)
    num_again: collections.Counter[str] = field(default_factory=collections.Counter)
    passed_on: collections.Counter[str] = field(default_factory=collections.Counter)
    num_passed_on: collections.Counter[str] = field(default_factory=collections.Counter)


class _Account:
    """Computes the terms that lead from a layer summary's total to the allocated peak.

    Args:
        alive: indices of the allocations that are alive at the peak.
        step: number of the step in which the peak is reached.
    """

    def __init__(self, summary: Summary, profile: Profile, *, alive: Sequence[int], step: int) -> None:
        self._summary = summary
        self._profile = profile
        self._allocations = profile.trace.allocations
        self._sizes = profile.requested_bytes
        self._alive = alive
        self._listed = _listed(summary.rows, self._allocations)
        matching = _counterparts(profile, step)
        self._outputs = {matching[number] for number in self._listed.first if number in matching}

    def terms(self) -> Iterator[Term]:
        """Yields the terms in the order in which an answer shows them.

        The total of the summary and all terms add up to the allocated peak.
        """
        yield from self._what_is_not_there()
        yield from self._what_is_left_out()
        alive = self._alive
        blocks = sum(self._profile.block_bytes[number] for number in alive)
        yield Term(
            name="rounding of blocks",
            num_bytes=blocks - self._sum(alive),
            note="to multiples of 512 bytes; a remainder too small to split off stays in the block",
        )

    def _what_is_not_there(self) -> Iterator[Term]:
        """Yields the terms for bytes that the summary counts and that are not alive at the peak."""
        listed, summary = self._listed, self._summary
        yield Term(
            name="gradients of all outputs at once",
            num_bytes=-(summary.forward_backward_bytes // OUTPUT_COPIES) * (OUTPUT_COPIES - 1),
            note="a summary counts every output twice; backward frees each gradient once it is used",
        )
        yield Term(
            name="outputs in place or views",
            num_bytes=-listed.again.total(),
            note=f"they share memory that is counted already: {_named(listed.num_again)}",
        )
        yield Term(
            name="blocks that pass on an output",
            num_bytes=-listed.passed_on.total(),
            note=f"already counted with the layer that made it: {_named(listed.num_passed_on)}",
        )
        real = self._sum(listed.first)
        yield Term(
            name="outputs by their real size",
            num_bytes=real - sum(listed.first.values()),
            note=f"a summary assumes {ELEMENT_BYTES} bytes per element",
        )
        kept = self._sum(self._outputs.intersection(self._alive))
        yield Term(
            name="outputs freed before the peak",
            num_bytes=kept - real,
            note="backward does not need them, or has used them already",
        )

    def _what_is_left_out(self) -> Iterator[Term]:
        """Yields the terms for bytes alive at the peak that the summary does not count."""
        summary = self._summary
        by_category = collections.defaultdict[Category, list[int]](list)
        for number in self._alive:
            by_category[self._allocations[number].category].append(number)
        rest = [number for number in by_category[Category.ACTIVATION] if number not in self._outputs]
        yield Term(
            name="activations that no layer returns",
            num_bytes=self._sum(rest),
            note=self._operators(rest),
        )
        yield Term(
            name="parameters and buffers",
            num_bytes=self._sum(by_category[Category.PARAMETER]) - summary.parameter_bytes,
            note="adds those not named weight or bias, removes those counted twice, and uses real sizes",
        )
        yield Term(
            name="inputs",
            num_bytes=self._sum(by_category[Category.INPUT]) - summary.input_bytes,
            note="labels and everything else in the batch, at their real sizes",
        )
        yield Term(
            name="gradients of parameters",
            num_bytes=self._sum(by_category[Category.GRADIENT]),
        )
        yield Term(name="optimizer state", num_bytes=self._sum(by_category[Category.OPTIMIZER_STATE]))
        workspaces = by_category[Category.WORKSPACE]
        yield Term(name="workspace", num_bytes=self._sum(workspaces), note=self._operators(workspaces))
        backward = _made_in(self._profile, "backward")
        passing = [number for number in by_category[Category.OTHER] if number in backward]
        others = [number for number in by_category[Category.OTHER] if number not in backward]
        yield Term(
            name="gradients of activations at the peak",
            num_bytes=self._sum(passing),
            note=self._operators(passing),
        )
        yield Term(name="temporaries", num_bytes=self._sum(others), note=self._operators(others))

    def _sum(self, numbers: Iterable[int]) -> int:
        return sum(self._sizes[number] for number in numbers)

    def _operators(self, numbers: Iterable[int]) -> str:
        """Names of the three operators that made most bytes of the given allocations, joined by commas.

        Args:
            numbers: indices of the allocations.
        """
        sizes = collections.Counter[str]()
        for number in numbers:
            operator = self._allocations[number].operator.removeprefix("aten.")
            sizes[operator or "outside any operator"] += self._sizes[number]
        return ", ".join(name for name, _ in sizes.most_common(_MOST_NAMED))


def _listed(rows: Iterable[SummaryRow], allocations: Sequence[Allocation]) -> _Listed:
    """Bytes of all layer outputs in a summary, divided into first uses and repeats of an allocation."""
    listed = _Listed()
    for row in rows:
        layer = row.layer
        for shape, number in zip(layer.output_shapes, layer.outputs, strict=True):
            num_bytes = ELEMENT_BYTES * math.prod(shape)
            # A layer may return one of its inputs or parameters, whose memory counts as input or parameter.
            is_own = allocations[number].category is Category.ACTIVATION
            if is_own and number not in listed.first:
                listed.first[number] = num_bytes
            elif layer.is_container:
                listed.passed_on[layer.module_type] += num_bytes
                listed.num_passed_on[layer.module_type] += 1
            else:
                listed.again[layer.module_type] += num_bytes
                listed.num_again[layer.module_type] += 1
    return listed


def _named(counted: collections.Counter[str]) -> str:
    return ", ".join(f"{num}× {name}" for name, num in counted.most_common(_MOST_NAMED))


def _made_in(profile: Profile, name: str) -> set[int]:
    """Indices of the allocations that were made in any phase of a name, such as `backward`."""
    events = profile.trace.events
    return {
        event
        for phase in phases(profile)
        if phase.name == name
        for event in events[phase.start : phase.stop]
        if event >= 0
    }


def _counterparts(profile: Profile, step: int) -> dict[int, int]:
    """Map from each activation of the first step to the same activation of a later step, by allocation.

    Two activations are the same if the same call of the same operator in the same module made them. An
    activation is left out if the later step runs other operators.

    Args:
        step: number of the later step.
    """
    first, other = (_activations(profile, number) for number in (1, step))
    return {number: other[key] for key, number in first.items() if key in other}


_Key = tuple[object, ...]


def _activations(profile: Profile, step: int) -> dict[_Key, int]:
    """Activations that a step's forward pass made: index of the allocation by a key of the activation.

    A key has module, operator, shape, data type, and the count of earlier activations with these.
    """
    num_seen = collections.Counter[_Key]()
    found: dict[_Key, int] = {}
    for phase in phases(profile):
        if phase.step != step or phase.name != "forward":
            continue
        for event in profile.trace.events[phase.start : phase.stop]:
            if event < 0:
                continue
            made = profile.trace.allocations[event]
            key = (made.module, made.operator, made.shape, made.dtype)
            if made.category is Category.ACTIVATION:
                place = (*key, num_seen[key])
                found[place] = event
                num_seen[key] += 1
    return found
