"""Phrases shared by all answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from autofit.answers.words.run import lengths_in_words, seen_part
from autofit.hardware.budget import shown_by
from autofit.hardware.gpus import oldest_first
from autofit.predict.estimate import Estimate, Interval, RankEstimate
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Verdict
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import BatchSource, Category

CATEGORY_NAMES = {
    Category.PARAMETER: "parameters",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.GRADIENT: "gradients",
    Category.INPUT: "inputs",
    Category.ACTIVATION: "activations",
    Category.WORKSPACE: "workspace",
    Category.OTHER: "temporaries, other",
}


def samples_in_words(knobs: Knobs, batch_size: int, parallel: Parallel) -> str:
    """Phrase for the samples of a step on all ranks together.

    Some ranks share a batch, or its micro-batches. Which ranks do is unknown for a script, so its phrase has
    the batch of one rank.
    """
    num_batches = knobs.num_batches(batch_size)
    each = f"a batch of {batch_size}" if num_batches == 1 else f"{num_batches} batches of {batch_size}"
    if parallel.is_of_script:
        return f"one of {parallel.num_ranks} ranks with {each}"
    if parallel.pipeline is not None:
        each = f"{parallel.pipeline.num_microbatches} microbatches of {batch_size}"
    total = knobs.samples_per_step(batch_size, parallel.num_batches)
    shared = parallel.num_ranks // parallel.num_replicas
    groups = f"{parallel.num_replicas} groups of {shared} ranks"
    if parallel.num_replicas == 1:
        return f"{parallel.num_ranks} {parallel.members} with {each} together: {total} samples a step"
    ranks = f"{parallel.num_ranks} ranks" if shared == 1 else groups
    return f"{ranks} with {each} each: {total} samples a step"


_BATCH_SOURCES = {
    BatchSource.DATA_LOADER: "the samples that its data loader collates",
    BatchSource.MODEL_INPUT: "the rows that its model is trained on",
}


def batch_of_script(estimate: Estimate) -> tuple[str, ...]:
    """Phrase for how a script's batch size was determined; empty for other workloads."""
    source = _BATCH_SOURCES.get(BatchSource(estimate.batch_source)) if estimate.batch_source else None
    if source is None:
        return ()
    a_step = f", {estimate.samples_per_step} samples a step" * (
        estimate.samples_per_step != estimate.batch_size
    )
    return (f"a batch of {estimate.batch_size}: {source}{a_step}",)


def rank_peaks(estimate: Estimate) -> tuple[str, ...]:
    """Phrase for the memory need of the worst rank and of the others; empty for a single rank."""
    if not estimate.ranks:
        return ()
    members = Parallel.named(estimate.parallel).members
    if estimate.num_kinds_of_ranks == 1:
        return (f"all {estimate.num_ranks} {members} need the same",)
    member = members.removesuffix("s")
    (worst,) = (each for each in estimate.ranks if each.rank == estimate.rank)
    said = [f"{member} {worst.rank} of {estimate.num_ranks} needs the most, {_need(worst)}"]
    said += [f"{member} {each.rank} {_need(each)}" for each in estimate.ranks if each is not worst]
    if untraced := estimate.num_kinds_of_ranks - len(estimate.ranks):
        said.append(f"{untraced} others that differ were not traced")
    return ("; ".join(said),)


def _need(rank: RankEstimate) -> str:
    alike = f", as {rank.num_alike - 1} more" if rank.num_alike > 1 else ""
    return f"{format_bytes((rank.need or rank.interval).likely_bytes)}{alike}"


def unnamed_card(architectures: Sequence[str]) -> str:
    """Note that a peak's interval covers several GPU architectures, and how to narrow it."""
    spanned = ", ".join(oldest_first(architectures))
    return (
        f"no --gpu given: {architectures[0]} is assumed, and the range covers {spanned}; "
        "name the card to narrow it"
    )


def on_its_card(estimate: Estimate) -> str:
    """Phrase for how a configuration runs that may exceed its card's memory; else empty."""
    if estimate.need is None or estimate.limit_bytes is None:
        return ""
    card = f"the {format_bytes(estimate.limit_bytes)} that the card has for PyTorch"
    need = span_of_bytes(estimate.need)
    match estimate.likely_verdict:
        case Verdict.OOM:
            is_sure = estimate.need.low_bytes > estimate.limit_bytes
            return f"{'does not' if is_sure else 'likely does not'} fit: it needs {need} of {card}"
        case Verdict.THRASH:
            times = "once" if estimate.num_alloc_retries == 1 else f"{estimate.num_alloc_retries} times"
            return (
                f"thrashes: it fills {card}, and {times} in the steps that were traced the allocator has to "
                f"give back all that it keeps and ask again; without a limit it would reserve {need}"
            )
        case _:
            most = format_bytes(estimate.need.high_bytes)
            return (
                f"likely fits, but may need up to {most} of {card}: then it thrashes, or runs out of memory"
            )


class PeakNames(NamedTuple):
    """Display names of the reserved and the device peak, and a phrase for the device peak."""

    reserved: str
    device: str
    of_device: str

    @classmethod
    def of(cls, architecture: str | None, *, runs_out: bool) -> Self:
        """Display names of the peaks on a card, or of the needed memory if `runs_out`.

        Args:
            architecture: architecture of the card, which decides the tool that is named, such as nvidia-smi.
        """
        if runs_out:
            return cls("needed", "needed in all", "a card of that much")
        return cls("reserved peak", "device peak", f"what {shown_by(architecture)} would show")

    def peaks(
        self, allocated_bytes: int, reserved_bytes: int, context_bytes: int
    ) -> tuple[tuple[str, int, str], ...]:
        """Name, bytes and note of the allocated, the reserved and the device peak."""
        return (
            ("allocated peak", allocated_bytes, "live tensors"),
            (self.reserved, reserved_bytes, "PyTorch's segments, likely"),
            (self.device, reserved_bytes + context_bytes, self.of_device),
        )


def span_of_bytes(interval: Interval) -> str:
    """Size range as text, such as `12.00 GiB to 14.10 GiB`."""
    low, high = format_bytes(interval.low_bytes), format_bytes(interval.high_bytes)
    return low if low == high else f"{low} to {high}"


def assumptions(estimate: Estimate, *, names_card: bool = False) -> tuple[str, ...]:
    """Notes on what the interval of a predicted peak covers and assumes.

    Args:
        names_card: whether the card was named, so that no note has to ask for its name.
    """
    is_spanned = len(estimate.architectures) > 1 and not names_card
    spanned = (unnamed_card(estimate.architectures),) if is_spanned else ()
    return (
        *rank_peaks(estimate),
        *spanned,
        *workspaces(estimate),
        estimate.calibration.note,
        *widest(estimate),
        *assumed_sizes(estimate),
        *seen_part(estimate.seen),
        *([lengths_in_words(estimate.lengths)] if estimate.lengths else ()),
        *estimate.notes,
    )


def widest(estimate: Estimate) -> tuple[str, ...]:
    """Note on the largest part of the interval above the likely peak; empty with at most one unknown."""
    if len(estimate.unknowns) <= 1:
        return ()
    largest, interval = estimate.unknowns[0], estimate.whole_interval
    beyond = interval.high_bytes - interval.likely_bytes
    share = min(beyond, largest.high_bytes - largest.likely_bytes)
    first, *others = largest.modules or ("",)
    where = f", most in {first}" if first else ""
    if first and others:
        where += f" and {len(others)} like it"
    return (
        f"of the {format_bytes(beyond)} between likely and high, {format_bytes(share)} are "
        f"{largest.source}{where}",
    )


def workspaces(estimate: Estimate) -> tuple[str, ...]:
    """Note on the source of the convolutions' workspace sizes; empty for a step without convolutions."""
    return (f"convolution workspaces: {estimate.workspace_source}",) if estimate.convolves else ()


def assumed_sizes(estimate: Estimate) -> tuple[str, ...]:
    """Notes on sizes assumed for tensors whose shapes depend on values, with lines and possible excess."""
    said = [
        f"{each.what} at {each.site}: {each.size:,} assumed"
        + ("" if each.largest is None else f" of at most {each.largest:,}")
        + ("" if each.batch_size in (None, estimate.batch_size) else f" at batch {each.batch_size}")
        for each in estimate.assumptions
    ]
    moves_bytes = max((each.moves_bytes for each in estimate.assumptions), default=0)
    if moves_bytes:
        said.append(f"such sizes may add {format_bytes(moves_bytes)}, which the range covers: see --assume")
    return tuple(said)


def evidence_phrase(evidence: Evidence, device: Device) -> str:
    """Phrase for the evidence of a size, such as `predicted, not measured`."""
    match evidence:
        case Evidence.PREDICTED:
            return "predicted, not measured"
        case Evidence.MEASURED:
            return f"measured on {device.name}"
        case Evidence.EMULATED:
            return f"measured on {device.name}, a larger card, under a memory limit"
        case Evidence.MEASURED_CPU:
            return "measured on the CPU"
