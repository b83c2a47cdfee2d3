"""Settings of `autofit tune`, with checks for contradictions between them.

Settings hold bytes, numbers and cards, never the text that was typed: `resolve.py` reads that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Self

from autofit.dispatch.connect import RAY
from autofit.errors import UsageError
from autofit.hardware.budget import DEFAULT_MARGIN, Budget, budget_of
from autofit.hardware.card import Card, card_named
from autofit.hardware.gpus import Gpu
from autofit.settings import values
from autofit.settings.goals import Batching, Maximized, Objective, Risk
from autofit.settings.lengths import BatchLengths
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel, Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """All settings of `autofit tune`, read and checked.

    Attributes:
        model: a built-in's name, `timm:NAME` and its like, `package.module:attribute` or
            `path/file.py:attribute`; the path of a script.
        script: the path of a training script that is run as it is, in place of a model.
        script_arguments: the arguments of the script's command line.
        batch_argument, batch_variable: the argument or the environment variable that takes its batch size.
        batch_name: the constant in its code that is its batch size.
        keeps_trackers: whether the script logs to trackers while it is tried.
        num_processes: ranks on each node, of the script or of `parallels` that are named by their kind.
        num_nodes: nodes with so many ranks each, of the script, of these, or of a measured trial.
        launcher: what starts the script, with options of its own; None for torchrun where ranks are counted.
        input_shape: shape of one sample, where the attribute is a module rather than a Workload.
        num_classes: number of classes of the labels that go with it.
        task: what a model of transformers is trained for; None for what its configuration names.
        gpu_mem_bytes: the device's total memory; with `device="cpu"` what the process may use.
        gpu: the card, instead of `gpu_mem_bytes`. With neither, the local card.
        conv_algos: the convolution algorithms to choose from; `ALL_CONV_ALGOS` for all that apply, None
            for those that the device's backend has of itself.
        knobs: the knobs that are not searched; the convolution algorithm is among `conv_algos`.
        given_knobs: the names of the knobs that were given a value, be it the default.
        searched: knobs, by their names in `Knobs`, with the values to choose from; every combination of
            them and of the algorithms is a setting of its own.
        setup: mode, kind of batches, ranks, and what is assumed of values that are not known.
        parallels: the ways of training together that are compared, instead of the one of the setup.
        maximize: what is made as large as fits.
        batch_size: the batch size to find the longest samples for, where those are maximized; None for 1.
        lengths: the lengths of the data's samples, whose longest decides the size of a sample; None where
            that is not asked.
        batching: how batches are made of these samples.
        margin: share of the device's total that is kept free.
        reserve_bytes: what is left to other processes on the device.
        risk: which level of a predicted peak has to be within the budget.
        objective: what to maximize: samples a step, or samples a second, measured or predicted.
        epoch_samples: samples of an epoch, whose time is told; None where that is not asked.
        soak_steps: steps of the trial that verifies the winner, 0 for none; None for 20 on CUDA and
            5 on the CPU.
        max_trials: the most measured trials, those in the study included; None for no limit.
        max_seconds: the longest that the search may run; None for no limit.
        storage: an Optuna URL; None for a journal file in the state directory.
        storage_wait_seconds: how long a database that went away is waited for; 0 for not at all.
        study: the study's name; None for one that follows from the settings.
        dispatch: what runs measured trials: Ray, or this machine one after another.
        address: a Ray cluster's address; None for a local one.
        resources: amounts of Ray's custom resources that every trial asks its node for.
        node_wait_seconds: how long a trial waits for a node that could run it; 0 for not at all.
        fresh: ignore earlier studies and cached results.
        metrics_port: where Prometheus metrics are served; None for nowhere, 0 for any free port.
        deadline_seconds: how long one trial may take.
        num_threads: intra-op threads of a CPU trial; None for one per core.

    Raises:
        UsageError: when two settings contradict each other.
    """

    model: str
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    task: str | None = None
    script: str | None = None
    script_arguments: tuple[str, ...] = ()
    batch_argument: str | None = None
    batch_variable: str | None = None
    batch_name: str | None = None
    keeps_trackers: bool = False
    num_processes: int | None = None
    num_nodes: int = 1
    launcher: str | None = None
    gpu_mem_bytes: int | None = None
    gpu: Gpu | None = None
    device: str = "auto"
    probe: str = "auto"
    conv_algos: tuple[str, ...] | None = None
    knobs: Knobs = field(default_factory=Knobs)
    given_knobs: tuple[str, ...] = field(default=(), compare=False)
    searched: tuple[tuple[str, tuple[str | bool, ...]], ...] = ()
    setup: Setup = field(default_factory=Setup)
    parallels: tuple[Parallel, ...] = ()
    maximize: Maximized = Maximized.BATCH_SIZE
    batch_size: int | None = None
    lengths: BatchLengths | None = None
    batching: Batching = Batching.SHUFFLED
    max_batch: int = 65536
    margin: Decimal = DEFAULT_MARGIN
    reserve_bytes: int = 0
    risk: Risk = Risk.SAFE
    objective: Objective = Objective.BATCH
    epoch_samples: int | None = None
    soak_steps: int | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    storage: str | None = None
    storage_wait_seconds: float = 60.0
    study: str | None = None
    dispatch: str = RAY
    address: str | None = None
    resources: tuple[tuple[str, float], ...] = ()
    node_wait_seconds: float = 30.0
    fresh: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    deadline_seconds: float = 600.0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        of_script = (self.script_arguments, self.batch_argument, self.batch_variable, self.batch_name)
        if self.script is None and (any(of_script) or self.keeps_trackers):
            raise UsageError(
                "--script-arg, --batch-arg, --batch-env, --batch-name and --keep-trackers need a script: "
                "name it with --script"
            )
        if self.gpu is not None and self.gpu_mem_bytes is not None:
            raise UsageError(
                "--gpu and --gpu-mem cannot be combined: a card's name includes its memory; give one of them"
            )
        self._require_sizes()
        self._require_ranks()
        if self.device != "cpu":
            return
        if self.knobs.allocator != Knobs().allocator or "allocator" in dict(self.searched):
            raise UsageError(
                "--allocator and --search allocator=… set PyTorch's CUDA allocator and cannot be combined "
                "with --device cpu: drop one of them"
            )
        if self.gpu is not None:
            raise UsageError(
                "--gpu cannot be combined with --device cpu: give --gpu-mem, the memory for the process"
            )
        if self.gpu_mem_bytes is None:
            raise UsageError(
                "--device cpu needs a limit: give the memory that the process may use, such as --gpu-mem 4G"
            )
        if self.probe == "predict":
            raise UsageError(
                "--probe predict predicts GPUs and cannot be combined with --device cpu: drop it, or use "
                "--probe measure"
            )

    @property
    def num_ranks_of_script(self) -> int:
        """Number of ranks given for a script; those that its own launcher starts show only in the run."""
        return 1 if self.script is None else (self.num_processes or 1) * self.num_nodes

    @property
    def num_nodes_of_trials(self) -> int:
        """Number of nodes that a trial's ranks are spread over; 1 for a script, which is never measured."""
        return self.num_nodes if self.script is None else 1

    @property
    def mesh(self) -> tuple[int, ...]:
        """Number of ranks in each process group that communicates, as far as known before a run."""
        return self.setup.parallel.mesh or Parallel.of_script(self.num_ranks_of_script).mesh

    @property
    def sized_knobs(self) -> Knobs:
        """Knobs, with the sample size taken from the longest sample where the data's lengths are given."""
        lengths = self.capped_lengths
        return self.knobs if lengths is None else replace(self.knobs, seq_len=lengths.worst(1))

    @property
    def capped_lengths(self) -> BatchLengths | None:
        """Sample lengths of the data, cut to `--seq-len`; None where no lengths are given."""
        limit = self.knobs.seq_len
        return self.lengths if self.lengths is None or limit is None else self.lengths.capped(limit)

    def _require_ranks(self) -> None:
        """Raises `UsageError` for options that contradict each other about the ranks and where they run."""
        if self.script is None and self.launcher is not None:
            raise UsageError(
                "--launcher starts a script: name it with --script, or say the ranks of a model with "
                "--parallel, as in fsdp:8"
            )
        if self.script is None and self.num_processes is not None and not self.parallels:
            raise UsageError(
                "--nproc counts the ranks of a script, or of --search parallel=…: name it with --script, or "
                "add that; the ranks of a model can be said with --parallel, as in fsdp:8"
            )
        if self.script is not None and self.parallels:
            raise UsageError("--search parallel=… spreads a model, and a script decides that itself: drop it")
        if self.setup.rank and self.parallels:
            raise UsageError(
                "--rank names a rank of one --parallel, and --search parallel=… compares several: drop it"
            )
        if self.script is None and self.setup.rank and not self.setup.parallel:
            raise UsageError(
                f"--rank {self.setup.rank} needs ranks to be one of: name them with --parallel, as in fsdp:8"
            )
        if self.setup.rank != 0 and (wants := self._measures):
            raise UsageError(
                f"--rank names the rank that is predicted and cannot be combined with {wants}, which runs "
                "all of them: drop one of the two"
            )
        if not self.setup.parallel.can_be_measured and (wants := self._measures):
            raise UsageError(
                f"--parallel {self.setup.parallel} is predicted and not measured, and {wants} measures: drop "
                "one of the two"
            )
        if self.num_ranks_of_script > 1 and (wants := self._measures):
            raise UsageError(
                f"--nproc and --nnodes predict one rank of a script and cannot be combined with {wants}: "
                "drop one of the two"
            )
        if self.knobs.global_batch is not None and (self.setup.parallel or self.parallels):
            raise UsageError(
                "--global-batch counts the samples of one process and cannot be combined with --parallel or "
                "--search parallel=…: give --grad-accumulation instead"
            )
        if self.script is None and self.num_nodes > 1:
            self._require_nodes()

    def _require_nodes(self) -> None:
        """Raises `UsageError` for a model's ranks that cannot be spread over several nodes."""
        if self.dispatch != RAY:
            raise UsageError(f"--nnodes is for a Ray cluster, and --dispatch {self.dispatch} has one machine")
        if not self.parallels and not self.setup.parallel:
            raise UsageError(
                "--nnodes spreads ranks over nodes, and there is one: name more with --parallel, as in fsdp:8"
            )
        for parallel in self.parallels or (self.setup.parallel,):
            if parallel.num_ranks % self.num_nodes:
                raise UsageError(
                    f"--nnodes {self.num_nodes} has the same number of ranks on each node, and {parallel} is "
                    f"of {parallel.num_ranks}: give a number of nodes that divides it"
                )
        if not self.parallels and self._measures is None:  # of those, it says how many ranks there are
            raise UsageError(
                "--nnodes spreads the ranks of measured trials, and without --probe measure or --device cpu "
                f"--parallel {self.setup.parallel} is predicted: add one of them, or drop --nnodes"
            )

    def _require_sizes(self) -> None:
        """Raises `UsageError` for options that contradict each other about a sample's size."""
        if self.lengths is None and self.batching is not Batching.SHUFFLED:
            raise UsageError("--batching is about the lengths of your data: give them with --lengths FILE")
        at_odds = self._at_odds_with_found_sizes
        if self.lengths is not None and at_odds is not None:
            raise UsageError(f"--lengths cannot be combined with {at_odds}: drop one of them")
        if self.maximize is not Maximized.SEQ_LEN:
            if self.batch_size is not None:
                raise UsageError(
                    "--batch-size is for --maximize seq-len: add that, or leave it out for the largest batch"
                )
            return
        wants = (
            "--seq-len" if self.knobs.seq_len is not None
            else at_odds or (None if self.lengths is None else "--lengths")
        )  # fmt: skip
        if wants is not None:
            raise UsageError(f"--maximize seq-len cannot be combined with {wants}: drop one of them")

    @property
    def _at_odds_with_found_sizes(self) -> str | None:
        """Given option that cannot be combined with a search for the sample size; None if there is none."""
        return (
            "--search seq-len=…" if "seq_len" in dict(self.searched)
            else "--script" if self.script is not None
            else "--device cpu" if self.device == "cpu"
            else "--global-batch" if self.knobs.global_batch is not None
            else None
        )  # fmt: skip

    @property
    def _measures(self) -> str | None:
        """Given option that asks for measured trials, as typed; None if there is none."""
        return (
            None if self.probe == "predict"
            else f"--device {self.device}" if self.device != "auto"
            else "--probe measure" if self.probe == "measure"
            else None
        )  # fmt: skip

    def with_parallel(self, parallel: Parallel) -> Self:
        """Settings for one parallelism, in place of those in `parallels`."""
        one = replace(
            self,
            setup=replace(self.setup, parallel=parallel),
            parallels=(),
            num_processes=None,
            num_nodes=1 if self._measures is None else self.num_nodes,
        )
        return one.with_deciding_rank()

    def with_deciding_rank(self) -> Self:
        """Settings for all ranks, not one, if ranks differ and are only predicted; one may need more.

        Measured trials run all ranks anyway.
        """
        if not self.setup.parallel.runs_apart or self._measures is not None:
            return self
        return replace(self, setup=replace(self.setup, rank=None))

    @property
    def may_compile(self) -> bool:
        """Whether any of the knob settings compiles the model."""
        return True in dict(self.searched).get("compile", (self.knobs.compile,))

    @property
    def says_of_a_sample(self) -> bool:
        """Whether any option about a sample is given: its shape, classes or task."""
        return any(value is not None for value in (self.input_shape, self.num_classes, self.task))

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
        """Names of the knobs that advice must not change, as they are searched anyway."""
        of_convolutions = () if self.conv_algos is None else ("conv_algo",)
        return frozenset((*dict(self.searched), *of_convolutions))

    def one_conv_algo(self, what: str) -> str:
        """Convolution algorithm for predicting a single configuration; PyTorch's default unless named.

        Raises:
            UsageError: several are named.
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
