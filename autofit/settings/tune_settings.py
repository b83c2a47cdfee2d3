"""Settings of `autofit tune`, checked for contradictions, and values that follow from them.

Settings hold bytes, numbers and cards, never the text that was typed: `resolve.py` reads that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from autofit.errors import UsageError
from autofit.hardware.budget import Budget, budget_of
from autofit.hardware.card import Card, card_named
from autofit.hardware.gpus import Gpu
from autofit.settings import values
from autofit.settings.contradictions import asks_to_measure, require_consistent
from autofit.settings.lengths import BatchLengths
from autofit.settings.options import DeclaredSettings
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel


@dataclass(frozen=True, kw_only=True)
class TuneSettings(DeclaredSettings):
    """All settings of `autofit tune`, read and checked; the fields are those of `autofit.settings.options`.

    Raises:
        UsageError: when two settings contradict each other.
    """

    def __post_init__(self) -> None:
        require_consistent(self)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Number of ranks in each process group that communicates, as far as known before a run."""
        return self.setup.parallel.mesh or Parallel.of_script(self.num_ranks_of_script).mesh

    @property
    def sized_knobs(self) -> Knobs:
        """Knobs of the settings; if `--lengths` is given, with the longest sample's length as sample size."""
        lengths = self.capped_lengths
        return self.knobs if lengths is None else replace(self.knobs, seq_len=lengths.worst(1))

    @property
    def capped_lengths(self) -> BatchLengths | None:
        """Sample lengths of the data, cut to `--seq-len`; None where no lengths are given."""
        limit = self.knobs.seq_len
        return self.lengths if self.lengths is None or limit is None else self.lengths.capped(limit)

    def with_parallel(self, parallel: Parallel) -> Self:
        """Settings for one parallelism, in place of those in `parallels`."""
        one = replace(
            self,
            setup=replace(self.setup, parallel=parallel),
            parallels=(),
            num_processes=None,
            num_nodes=1 if asks_to_measure(self) is None else self.num_nodes,
        )
        return one.with_deciding_rank()

    def with_deciding_rank(self) -> Self:
        """Settings for all ranks, not one, if ranks differ and are only predicted; one may need more.

        Measured trials run all ranks anyway.
        """
        if not self.setup.parallel.runs_apart or asks_to_measure(self) is not None:
            return self
        return replace(self, setup=replace(self.setup, rank=None))

    @property
    def may_compile(self) -> bool:
        """Whether any of the knob settings compiles the model."""
        return True in dict(self.searched).get("compile", (self.knobs.compile,))

    @property
    def card(self) -> Card:
        """Card that a prediction with these settings assumes."""
        return card_named(None if self.gpu is None else self.gpu.key, self.mesh)

    def budget_on(self, gpu: Gpu) -> Budget:
        """Budget on a card of the catalogue, less the memory that the settings keep free.

        Raises:
            BudgetError: nothing is left of the card's memory.
        """
        return budget_of(gpu, margin=self.margin, reserve_bytes=self.reserve_bytes, mesh=self.mesh)

    @property
    def fixed_knobs(self) -> frozenset[str]:
        """Names of the knobs that advice must not change: searched ones, and `conv_algo` if it was named."""
        of_convolutions = () if self.conv_algos is None else ("conv_algo",)
        return frozenset((*dict(self.searched), *of_convolutions))

    def one_conv_algo(self, what: str) -> str:
        """Convolution algorithm for predicting a single configuration; PyTorch's default unless named.

        Raises:
            UsageError: several algorithms are named.
        """
        names = self.conv_algos or (Knobs().conv_algo,)
        if len(names) != 1 or names == values.ALL_CONV_ALGOS:
            raise UsageError(f"--conv-algo: {what} takes one algorithm; name one of them")
        return names[0]

    def configuration(self, what: str) -> Knobs:
        """Knob setting for predicting a single configuration.

        Raises:
            UsageError: several algorithms are named, or a knob is to be searched.
        """
        if self.searched or self.parallels:
            raise UsageError(
                f"--search: {what} takes one value for each knob: leave out --search and name each knob "
                "with its value, such as --precision amp-bf16"
            )
        return replace(self.knobs, conv_algo=self.one_conv_algo(what))
