"""Phrases shared by all answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autofit.answers.words.run import lengths_in_words, seen_part
from autofit.hardware.budget import shown_by
from autofit.hardware.gpus import oldest_first
from autofit.predict.estimate import Estimate, Interval, RankEstimate
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Verdict
from autofit_workers.spec.pythons import Self
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
    """Phrase for the samples of a step on all ranks: `8 ranks with a batch of 4 each: 32 samples a step`.

    Ranks that hold parts of one model (tensor parallelism, a pipeline) share a batch. For a script it is not
    known which do, so the phrase has only the batch of one rank.

    Args:
        knobs: knob values, among them the global batch that decides gradient accumulation.
        batch_size: samples of a batch on one rank; for a pipeline, of one microbatch.
        parallel: how the ranks train together.
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
    """Tuple with a phrase on how a script's batch size was found out, such as from its data loader.

    Empty for workloads that are no scripts.
    """
    source = _BATCH_SOURCES.get(BatchSource(estimate.batch_source)) if estimate.batch_source else None
    if source is None:
        return ()
    a_step = f", {estimate.samples_per_step} samples a step" * (
        estimate.samples_per_step != estimate.batch_size
    )
    return (f"a batch of {estimate.batch_size}: {source}{a_step}",)


def rank_peaks(estimate: Estimate) -> tuple[str, ...]:
    """Tuple with a phrase on the memory of the rank that needs the most and of the other ranks.

    Empty if there is a single process.
    """
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
    """Note for a prediction without `--gpu`: the assumed GPU architecture, and which others the range covers.

    Args:
        architectures: architectures such as `sm_80` that the range covers; the first is the assumed one.
    """
    spanned = ", ".join(oldest_first(architectures))
    return (
        f"no --gpu given: {architectures[0]} is assumed, and the range covers {spanned}; "
        "name the card to narrow it"
    )


def on_its_card(estimate: Estimate) -> str:
    """Phrase for a step that may not fit on its card: does not fit, thrashes, or only likely fits.

    Thrashing means that the allocator has to release its cache and ask again. Empty if no card is named, or
    if the prediction does not reach the card's memory.
    """
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
    """Names under which an answer shows the reserved and the device peak.

    Attributes:
        reserved: name of the peak of the allocator's segments.
        device: name of the peak of all memory of the process on the card.
        of_device: note on the device peak, such as `what nvidia-smi would show`.
    """

    reserved: str
    device: str
    of_device: str

    @classmethod
    def of(cls, architecture: str | None, *, runs_out: bool) -> Self:
        """Display names of the reserved and the device peak on a card.

        Args:
            architecture: GPU architecture, which decides whether nvidia-smi or amd-smi is named; None if
                unknown.
            runs_out: whether the step does not fit, so the sizes are named as needed memory.
        """
        if runs_out:
            return cls("needed", "needed in all", "a card of that much")
        return cls("reserved peak", "device peak", f"what {shown_by(architecture)} would show")

    def peaks(
        self, allocated_bytes: int, reserved_bytes: int, context_bytes: int
    ) -> tuple[tuple[str, int, str], ...]:
        """Name, bytes and note of the allocated, the reserved and the device peak, in this order.

        Args:
            context_bytes: bytes that the process holds on the card outside the allocator. Added to
                `reserved_bytes` they give the device peak.
        """
        return (
            ("allocated peak", allocated_bytes, "live tensors"),
            (self.reserved, reserved_bytes, "PyTorch's segments, likely"),
            (self.device, reserved_bytes + context_bytes, self.of_device),
        )


def span_of_bytes(interval: Interval) -> str:
    """Text of a size range, such as `12.00 GiB to 14.10 GiB`; a single size if both ends round alike."""
    low, high = format_bytes(interval.low_bytes), format_bytes(interval.high_bytes)
    return low if low == high else f"{low} to {high}"


def assumptions(estimate: Estimate, *, names_card: bool = False) -> tuple[str, ...]:
    """Notes on the assumptions behind a predicted peak's interval: ranks, workspaces, real runs, ….

    Args:
        names_card: whether the answer names the card already; else a note may ask the user to name it.
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
    """Tuple with a note on what contributes most to the interval above the likely peak.

    Empty if the interval has at most one cause.
    """
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
    """Tuple with a note on how convolution workspaces are known; empty for a step without convolutions."""
    return (f"convolution workspaces: {estimate.workspace_source}",) if estimate.convolves else ()


def assumed_sizes(estimate: Estimate) -> tuple[str, ...]:
    """Notes on tensors whose shapes depend on values, such as `nonzero`: the line, and the size assumed.

    A last note has the bytes that they may add at most. Empty if there are no such tensors.
    """
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
    """Phrase for how a size is known: `predicted, not measured`, or `measured on NVIDIA L4`."""
    match evidence:
        case Evidence.PREDICTED:
            return "predicted, not measured"
        case Evidence.MEASURED:
            return f"measured on {device.name}"
        case Evidence.EMULATED:
            return f"measured on {device.name}, a larger card, under a memory limit"
        case Evidence.MEASURED_CPU:
            return "measured on the CPU"
