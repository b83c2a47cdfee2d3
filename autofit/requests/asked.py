"""Cards and memory that a request asks for, whatever the scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autofit.hardware.gpus import Gpu, catalogue
from autofit.questions.card_fits import CardFit
from autofit.questions.check import Answer
from autofit_workers.spec.architecture import Architecture

_OLDEST_MAJOR = 0  # no card is that old: stands for no lower limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastCard:
    """Cards that a scheduler may give by their memory, each of which fits.

    Attributes:
        gpu: the smallest of them.
        major: least major compute capability that has to be asked for too; None if any will do.
    """

    gpu: Gpu
    major: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Cards and numbers of GPUs from which a request is made, whatever the scheduler.

    Attributes:
        rows: results for the cards and numbers of GPUs that the scheduler may give.
        fitting: of these, for each card on which the configuration fits the result with the fewest GPUs, in
            the order in which the user wants them.
        names_cards: whether the user named cards, and others are not wanted.
        num_nodes: number of machines over which the GPUs are spread.
    """

    rows: tuple[CardFit, ...]
    fitting: tuple[CardFit, ...]
    names_cards: bool = False
    num_nodes: int = 1

    def among(self, is_meant: Callable[[Gpu], bool]) -> Asked:
        """Copy with the cards alone of which `is_meant` is true."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if is_meant(catalogue()[row.gpu])),
            fitting=tuple(row for row in self.fitting if is_meant(catalogue()[row.gpu])),
        )

    @property
    def num_gpus(self) -> int:
        """Number of GPUs on all nodes, of the first card that fits."""
        return self.fitting[0].num_gpus

    @property
    def gpus_per_node(self) -> int:
        return self.num_gpus // self.num_nodes

    @property
    def of_one_number(self) -> tuple[CardFit, ...]:
        """The fitting cards of which as many are needed as of the first."""
        return tuple(row for row in self.fitting if row.num_gpus == self.num_gpus)

    @property
    def as_many(self) -> tuple[CardFit, ...]:
        """Results for all cards, fitting or not, with as many GPUs as are needed of the first that fits."""
        return tuple(row for row in self.rows if row.num_gpus == self.num_gpus)

    def on_known_generations(self) -> Asked:
        """Copy without cards whose convolution plans are not known, if it fits on others too.

        These are the oldest, on which a step may need much more memory.
        """
        known = self.among(lambda gpu: Architecture.of(gpu.architecture).is_planned_for)
        return known if known.fitting else self

    @property
    def least_major(self) -> int:
        """Least major compute capability among the cards, fitting or not."""
        return min(_major(catalogue()[row.gpu]) for row in self.rows)

    def shared_bytes(self) -> int:
        """Least memory of a GPU that a process may share with others, on whichever of the cards it lands.

        `unpredicted` names cards with as much on which it may not suffice.
        """
        asked_bytes = min(_least(row) for row in self.of_one_number)
        # A larger request leaves out smaller cards, and never lets in others, so this ends.
        while needed := [
            _least(row)
            for row in self.as_many
            if row.least_total_bytes is not None
            and row.total_bytes >= asked_bytes
            and _least(row) > asked_bytes
            and _leaves_one(self.of_one_number, _least(row))
        ]:
            asked_bytes = max(needed)
        return asked_bytes

    def unpredicted(self, asked_bytes: int) -> list[str]:
        """Keys of cards with so much memory on which the configuration may not fit."""
        return [
            row.gpu
            for row in self.as_many
            if row.total_bytes >= asked_bytes
            and (row.least_total_bytes is None or row.least_total_bytes > asked_bytes)
        ]

    def least_card(self, at_least: Callable[[Gpu], int], at_most: Callable[[Gpu], int]) -> LeastCard | None:
        """Smallest card such that each card that a scheduler takes for as large or larger fits.

        Where older cards need more memory, a least compute capability keeps them out.

        Args:
            at_least, at_most: least and most memory that the scheduler may know of a card.

        Returns:
            The card; None if a larger card does not fit whatever is asked for.
        """
        fitting = {row.gpu for row in self.of_one_number}
        best: LeastCard | None = None
        gpus = [catalogue()[row.gpu] for row in self.as_many]
        for major in (_OLDEST_MAJOR, *sorted({_major(gpu) for gpu in gpus})):
            new_enough = [gpu for gpu in gpus if _major(gpu) >= major]
            too_small = max((at_most(gpu) for gpu in new_enough if gpu.key not in fitting), default=0)
            enough = [gpu for gpu in new_enough if gpu.key in fitting and at_least(gpu) > too_small]
            if not enough:
                continue
            gpu = min(enough, key=lambda gpu: (at_least(gpu), gpu.key))
            if best is None or at_least(gpu) < at_least(best.gpu):
                best = LeastCard(gpu=gpu, major=major if major > _OLDEST_MAJOR else None)
        return best

    def by_name(self, names: Callable[[Gpu], Sequence[str]]) -> dict[str, CardFit]:
        """Fitting cards by the names under which a scheduler gives them, in order.

        A name is left out where it may also mean a card on which the configuration does not fit: a
        cluster's `V100` may have 16 or 32 GB.

        Args:
            names: a card's names in the scheduler, the most specific first; empty if it has none.
        """
        fits, known = {row.gpu for row in self.fitting}, {row.gpu for row in self.rows}
        meant: defaultdict[str, list[Gpu]] = defaultdict(list)
        for gpu in catalogue().values():
            if not gpu.is_mig_slice:
                for name in names(gpu):
                    meant[name].append(gpu)
        found: dict[str, CardFit] = {}
        for row in self.fitting:
            gpu = catalogue()[row.gpu]
            for name in reversed(names(gpu)):
                if all(
                    each.key in fits or (each.key not in known and each.total_bytes > gpu.total_bytes)
                    for each in meant[name]
                ):
                    found.setdefault(name, row)
                    break
        return found


def in_order(rows: Iterable[CardFit]) -> tuple[CardFit, ...]:
    """Results with the fewest GPUs, one for each card on which a configuration fits.

    The cheapest for a sample come first, of those that have a price and whose time is stated; then the
    others, the smallest memory of all GPUs first.
    """
    fewest: dict[str, CardFit] = {}
    for row in sorted(rows, key=lambda row: row.num_gpus):
        if row.verdict is Answer.FITS:
            fewest.setdefault(row.gpu, row)

    def rank(row: CardFit) -> tuple[bool, float, int, int, str]:
        cost = None if row.samples_per_price is None else 1 / row.samples_per_price
        return cost is None, cost or 0.0, row.num_gpus * row.total_bytes, row.num_gpus, row.gpu

    return tuple(sorted(fewest.values(), key=rank))


def keys_in_table(names: Mapping[str, str]) -> Callable[[Gpu], Sequence[str]]:
    """Function that returns the names of a card in a table by catalogue key, for `Asked.by_name`."""
    return lambda gpu: (names[gpu.key],) if gpu.key in names else ()


def _least(row: CardFit) -> int:
    assert row.least_total_bytes is not None, "of a card that fits the least memory is known"
    return row.least_total_bytes


def _leaves_one(fitting: Iterable[CardFit], asked_bytes: int) -> bool:
    return any(row.total_bytes >= asked_bytes for row in fitting)


def _major(gpu: Gpu) -> int:
    architecture = Architecture.of(gpu.architecture)
    return architecture.capability // 10 if architecture.vendor.facts.has_capability else _OLDEST_MAJOR
