"""Settings of `autofit tune`, checked for contradictions, and values that follow from them.

Settings hold bytes, numbers and cards, never the text that was typed: `resolve.py` reads that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autofit.errors import UsageError
from autofit.hardware.budget import Budget, budget_of
from autofit.hardware.card import Card, card_named
from autofit.hardware.gpus import Gpu
from autofit.settings import values
from autofit.settings.contradictions import asks_to_measure, require_consistent
from autofit.settings.lengths import BatchLengths
from autofit.settings.options import DeclaredSettings
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import Parallel


@dataclass(frozen=True, kw_only=True)
class TuneSettings(DeclaredSettings):
    """All settings of `autofit tune`, parsed and checked; the fields are those of `autofit.settings.options`.

    Raises:
        UsageError: when two settings contradict each other.
    """

    def __post_init__(self) -> None:
        require_consistent(self)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Number of ranks along each dimension of parallelism, from `--parallel` or a script's `--nproc`.

        Empty for a single process. A script may use other process groups, which are known only in the run.
        """
        return self.setup.parallel.mesh or Parallel.of_script(self.num_ranks_of_script).mesh

    @property
    def sized_knobs(self) -> Knobs:
        """Knob values to predict with; with `--lengths`, the size of a sample is that of the longest one."""
        lengths = self.capped_lengths
        return self.knobs if lengths is None else replace(self.knobs, seq_len=lengths.worst(1))

    @property
    def capped_lengths(self) -> BatchLengths | None:
        """Sample lengths from `--lengths`, longer ones cut to `--seq-len`; None without `--lengths`."""
        limit = self.knobs.seq_len
        return self.lengths if self.lengths is None or limit is None else self.lengths.capped(limit)

    def with_parallel(self, parallel: Parallel) -> Self:
        """Settings for one kind of parallelism, of several that `--search parallel=…` compares."""
        one = replace(
            self,
            setup=replace(self.setup, parallel=parallel),
            parallels=(),
            num_processes=None,
            num_nodes=1 if asks_to_measure(self) is None else self.num_nodes,
        )
        return one.with_deciding_rank()

    def with_deciding_rank(self) -> Self:
        """Settings in which all ranks are predicted, if ranks differ in memory, as in a pipeline.

        The rank that needs the most decides whether a batch fits. The settings are returned unchanged if
        ranks are alike, and if configurations are run, which runs all ranks anyway.
        """
        if not self.setup.parallel.runs_apart or asks_to_measure(self) is not None:
            return self
        return replace(self, setup=replace(self.setup, rank=None))

    @property
    def may_compile(self) -> bool:
        """Whether a search uses `torch.compile` in any of the settings that it tries."""
        return any(dict(self.searched).get("compile", (self.knobs.compile,)))

    @property
    def card(self) -> Card:
        """Card that predictions assume: the named GPU; without one, a GPU of the default architecture."""
        return card_named(None if self.gpu is None else self.gpu.key, self.mesh)

    def budget_on(self, gpu: Gpu) -> Budget:
        """Memory that PyTorch may use on a GPU model, after `--margin`, `--reserve` and the context.

        Raises:
            BudgetError: nothing is left of the card's memory.
        """
        return budget_of(gpu, margin=self.margin, reserve_bytes=self.reserve_bytes, mesh=self.mesh)

    @property
    def fixed_knobs(self) -> frozenset[str]:
        """Names of the knobs that advice must not change: searched ones, and `conv_algo` if it was set."""
        of_convolutions = () if self.conv_algos is None else ("conv_algo",)
        return frozenset((*dict(self.searched), *of_convolutions))

    def one_conv_algo(self, what: str) -> str:
        """Convolution algorithm of a single configuration: the named one, or PyTorch's default.

        Args:
            what: result of the command, for error messages, such as `a check`.

        Raises:
            UsageError: several algorithms are named.
        """
        names = self.conv_algos or (Knobs().conv_algo,)
        if len(names) != 1 or names == values.ALL_CONV_ALGOS:
            raise UsageError(f"--conv-algo: {what} takes one algorithm; name one of them")
        return names[0]

    def configuration(self, what: str) -> Knobs:
        """Knob values (precision, optimizer, …) of a single configuration.

        Args:
            what: result of the command, for error messages, such as `a check`.

        Raises:
            UsageError: several algorithms are named, or a knob is to be searched.
        """
        if self.searched or self.parallels:
            raise UsageError(
                f"--search: {what} takes one value for each knob: leave out --search and name each knob "
                "with its value, such as --precision amp-bf16"
            )
        return replace(self.knobs, conv_algo=self.one_conv_algo(what))
