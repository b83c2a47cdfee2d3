"""Setup of a workload besides its knobs: mode, kind of batches and ranks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from autofit_workers.spec.parallel_kinds import (
    CP,
    DDP,
    FSDP,
    FSDP1,
    FSDP_CP,
    MESH,
    OFFLOAD,
    PARALLEL_FORMS,
    PARALLEL_KINDS,
    PP,
    REPLICATE,
    SCRIPT,
    ZERO,
    FirstFsdp,
    Kind,
    Zero,
)
from autofit_workers.spec.pipeline import Pipeline, is_count
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.releases import followed_release

TRAIN, INFER, GENERATE = "train", "infer", "generate"
MODES = (TRAIN, INFER, GENERATE)
# The kinds of batches that a `make_batch` with a parameter `kind` can make.
TYPICAL, WORST = "typical", "worst"
BATCH_KINDS = (TYPICAL, WORST)
LIKELY_SHARE = 0.5
ALL = "all"  # value of `--rank` for all ranks
MOST_RANKS = 2**20  # beyond any cluster, and few enough to list them, and to look for their divisors


_OFFLOADABLE = (f"{FSDP}:", "hsdp:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Parallelism of several ranks that train together, one on each GPU.

    Attributes:
        degrees: pairs of a kind of parallelism and the number of ranks that share the work by it, in
            the order of `MESH`; the product is the number of ranks. Empty for a single process.
        pipeline: schedule and microbatches of pipeline parallelism; None without it.
        offloads_shards: whether `fully_shard` keeps the shards in host memory, by its `CPUOffloadPolicy`.

    Raises:
        ValueError: there is no such kind, fewer than two ranks share, or kinds do not go together.
    """

    degrees: tuple[tuple[str, int], ...] = ()
    pipeline: Pipeline | None = None
    offloads_shards: bool = False

    def __post_init__(self) -> None:
        """Sorts the kinds; raises `ValueError` for kinds or numbers of ranks that do not go together."""
        kinds = [kind for kind, _ in self.degrees]
        for kind, degree in self.degrees:
            if kind not in PARALLEL_KINDS:
                raise ValueError(f"{kind!r} is not one of {', '.join(PARALLEL_KINDS)}")
            if degree < 2:
                raise ValueError(f"{_as_typed(kind, degree)}: at least 2 ranks train together")
        if len(set(kinds)) < len(kinds):
            given = ",".join(f"{kind}:{degree}" for kind, degree in self.degrees)
            raise ValueError(
                f"{given} names one kind of parallelism twice: give each once, as in fsdp:4,tp:2"
            )
        self._require_that_they_go_together(kinds)
        if (PP in kinds) != (self.pipeline is not None):
            raise ValueError(f"{self}: a pipeline has ranks and a schedule, and nothing else has")
        if self.offloads_shards and FSDP not in kinds:
            raise ValueError(f"{self}: what is offloaded is fully_shard's, as in fsdp:8+offload")
        if REPLICATE in kinds and FSDP not in kinds:
            raise ValueError("hsdp of one shard shards nothing: use ddp:N, with the number of replicas")
        object.__setattr__(self, "degrees", tuple(sorted(self.degrees, key=_place_in_mesh)))

    def _require_that_they_go_together(self, kinds: Iterable[str]) -> None:
        known = [(PARALLEL_KINDS[kind], {*kinds} - {kind}) for kind in PARALLEL_KINDS if kind in kinds]
        # The kind that combines with the fewest others gives the clearest reason.
        for kind, others in sorted(
            known, key=lambda each: len(MESH if each[0].goes_with is None else each[0].goes_with)
        ):
            if kind.goes_with is not None and not kind.goes_with.issuperset(others):
                raise ValueError(f"{self}: {kind.why_not}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text of `--parallel`, such as `hsdp:2x4`; a text for one rank gives a single process.

        Raises:
            ValueError: `text` names no known kind, or no number of ranks.
        """
        parts = [part.strip() for part in text.split(",")]
        offloaded = [part for part in parts if part.startswith(_OFFLOADABLE) and part.endswith(OFFLOAD)]
        parts = [part.removesuffix(OFFLOAD) if part in offloaded else part for part in parts]
        staged = {part: _pipeline_of(part, text) for part in parts if part.startswith(f"{PP}:")}
        found = [
            degree
            for part in parts
            for degree in ([(PP, staged[part].num_ranks)] if part in staged else _degrees(part, text))
        ]
        pipelines = [each for each in staged.values() if each.num_ranks > 1]
        if math.prod(degree for _, degree in found) > MOST_RANKS:
            raise ValueError(f"{text}: at most {MOST_RANKS} ranks train together")
        # One rank has nobody to shard with, so a request to offload is refused rather than ignored.
        return cls(
            degrees=tuple(
                (kind, degree)
                for kind, degree in found
                if degree > 1 or OFFLOAD in kind or (offloaded and kind == FSDP)
            ),
            pipeline=pipelines[0] if pipelines else None,
            offloads_shards=bool(offloaded),
        )

    @classmethod
    def of(cls, degrees: Iterable[tuple[str, int]]) -> Self:
        """Makes the parallelism from pairs of a kind and its number of ranks.

        A pipeline gets its default schedule and number of microbatches.
        """
        degrees = tuple(degrees)
        stages = dict(degrees).get(PP)
        return cls(degrees=degrees, pipeline=None if stages is None else Pipeline.parse(stages, ""))

    @classmethod
    def of_script(cls, num_ranks: int) -> Self:
        """Parallelism of a script that a launcher starts as several ranks, and that shares out the work."""
        return cls(degrees=((SCRIPT, num_ranks),) if num_ranks > 1 else ())

    @classmethod
    def named(cls, text: str) -> Self:
        """Parses the name that documents such as traces and estimates have for a parallelism.

        It is the text of `--parallel`, `script:8` for the ranks of a script, or empty for a single process.
        """
        kind, _, number = text.partition(":")
        if kind == SCRIPT and number.isdecimal():
            return cls.of_script(int(number))
        return cls.parse(text) if text else cls()

    @property
    def name(self) -> str:
        """Name of the parallelism in documents such as traces, read by `named`; empty for one process."""
        return str(self) if self else ""

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return tuple(PARALLEL_KINDS[kind] for kind, _ in self.degrees)

    @property
    def num_ranks(self) -> int:
        return math.prod(degree for _, degree in self.degrees)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Number of ranks in each dimension of the device mesh, one dimension for each kind of parallelism.

        Empty for a single process.
        """
        return () if self.is_one_process else tuple(degree for _, degree in self.degrees)

    @property
    def members(self) -> str:
        """Plural noun for messages: `cards` if all belong to one process, else `ranks`."""
        return "cards" if self.is_one_process else "ranks"

    @property
    def runs_apart(self) -> bool:
        """Whether ranks run different parts of a model, as pipeline stages or layers spread over cards."""
        return any(kind.runs_apart for kind in self._kinds)

    @property
    def is_one_process(self) -> bool:
        """Whether a single process runs the layers on several cards, with no ranks that communicate."""
        return not all(kind.has_processes for kind in self._kinds)

    @property
    def num_replicas(self) -> int:
        """Number of different batches that the ranks train on at a time.

        Ranks of one pipeline, of tensor parallelism or of context parallelism share a batch. For a script the
        number is unknown and counted as one.
        """
        return math.prod(degree for kind, degree in self.degrees if not PARALLEL_KINDS[kind].shares_batches)

    @property
    def num_batches(self) -> int:
        """Number of batches that all ranks pass through the model at a time; microbatches count singly."""
        return self.num_replicas * self.num_microbatches

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches, each of the batch size, that a pipeline runs in a step; 1 without one."""
        return 1 if self.pipeline is None else self.pipeline.num_microbatches

    @property
    def is_of_script(self) -> bool:
        """Whether a training script itself decides how its ranks share the work."""
        return self.degree(SCRIPT) > 1

    @property
    def shards(self) -> bool:
        """Whether each rank holds only a part of the parameters, or of each sample.

        True for `fsdp1+no-shard` too, although each of its ranks holds all parameters.
        """
        return any(kind.shards for kind in self._kinds)

    @property
    def is_told(self) -> bool:
        """Whether traces have to name the parallelism; for `ddp:N` alone the number of ranks is enough."""
        return self.shards or self.is_one_process

    @property
    def has_ddp(self) -> bool:
        """Whether DistributedDataParallel wraps the model, to average gradients of unsharded parameters."""
        return self.degree(DDP) > 1 or (self.degree(CP) > 1 and self.degree(FSDP) == 1)

    def autocasts(self, *, adapted: bool) -> bool:
        """Whether steps of mixed precision run under autocast; false if the sharding itself casts parameters.

        With an adapter both may be needed, because some kinds of sharding do not cast the inputs of its
        layers. peft casts these inputs to the type of the weights it finds, which between two passes are
        shards in float32.

        Args:
            adapted: whether the model has an adapter.
        """
        return all(not kind.casts or (adapted and kind.leaves_inputs) for kind in self._kinds)

    @property
    def fsdp1(self) -> FirstFsdp | None:
        """Sharding by `FullyShardedDataParallel`, PyTorch's first FSDP; None for other parallelism."""
        return next((FSDP1[kind] for kind, _ in self.degrees if kind in FSDP1), None)

    @property
    def zero(self) -> Zero | None:
        """Sharding by DeepSpeed's ZeRO; None for other kinds of parallelism."""
        return next((ZERO[kind] for kind, _ in self.degrees if kind in ZERO), None)

    @property
    def offloads(self) -> bool:
        """Whether host memory keeps optimizer states, parameters or gradients that the card would hold."""
        wholes = (self.fsdp1, self.zero)
        return self.offloads_shards or any(each is not None and each.offloads for each in wholes)

    @property
    def can_be_measured(self) -> bool:
        """Whether autofit can run the ranks together; if not, it can only predict them."""
        return not self.offloads and all(kind.can_be_measured for kind in self._kinds)

    def place(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank in the device mesh: its number in each dimension, by kind of parallelism."""
        found = {}
        for kind, degree in reversed(self.degrees):
            rank, found[kind] = divmod(rank, degree)
        if CP in found and FSDP in found:
            found[FSDP_CP] = found[FSDP] * self.degree(CP) + found[CP]
        return found

    def replica(self, rank: int) -> int:
        """Number of the batch, from 0 to `num_replicas` - 1, that a rank trains on; ranks may share one."""
        place, found = self.place(rank), 0
        for kind, degree in self.degrees:
            if not PARALLEL_KINDS[kind].shares_batches:
                found = found * degree + place[kind]
        return found

    def degree(self, kind: str) -> int:
        """Number of ranks that share the work by a kind of parallelism; 1 if it is not used."""
        return dict(self.degrees).get(kind, 1)

    def __bool__(self) -> bool:
        """Whether there is more than one rank."""
        return bool(self.degrees)

    def __str__(self) -> str:
        """Text as `--parallel` takes it; `ddp:1` for a single process."""
        replicas = self.degree(REPLICATE)
        said = (
            (f"hsdp:{replicas}x{degree}" if kind == FSDP and replicas > 1 else _as_typed(kind, degree))
            + (str(self.pipeline or "") if kind == PP else "")
            + (OFFLOAD if kind == FSDP and self.offloads_shards else "")
            for kind, degree in self.degrees
            if kind != REPLICATE
        )
        return ",".join(said) or f"{DDP}:1"


def _place_in_mesh(degree: tuple[str, int]) -> int:
    return MESH.index(degree[0]) if degree[0] in MESH else 0


def _as_typed(kind: str, degree: int) -> str:
    name, plus, variant = kind.partition("+")
    return f"{name}:{degree}{plus}{variant}"


def _no_form(text: str, example: str) -> ValueError:
    *forms, last = PARALLEL_FORMS
    return ValueError(
        f"{text!r} is not {', '.join(forms)} or {last}, with numbers of ranks from 1 on, as in {example}"
    )


def _pipeline_of(part: str, whole: str) -> Pipeline:
    number, _, options = part.removeprefix(f"{PP}:").partition("+")
    if not is_count(number):
        raise _no_form(whole, f"{PP}:8")
    return Pipeline.parse(int(number), options)


def _degrees(part: str, whole: str) -> list[tuple[str, int]]:
    kind, _, number = part.partition(":")
    number, plus, variant = number.partition("+")
    kind = f"{kind}{plus}{variant}"
    numbers = number.split("x") if kind == "hsdp" else [number]
    kinds = [REPLICATE, FSDP] if kind == "hsdp" else [kind]
    is_known = kind == "hsdp" or (kind in PARALLEL_KINDS and kind not in (REPLICATE, SCRIPT))
    are_numbers = all(map(is_count, numbers))
    if not is_known or len(numbers) != len(kinds) or not are_numbers:
        raise _no_form(whole, "fsdp:8")
    return [(each, int(count)) for each, count in zip(kinds, numbers, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a workload besides its training options: mode, batches, ranks and permissions.

    Attributes:
        mode: `train`, `infer`, `generate`, or None for the workload's own mode.
        batch_kind: `TYPICAL`, or `WORST` for the largest batches that the data can make, if the workload
            makes both kinds.
        parallel: how several ranks share the work. A prediction is for one of them, a measured trial runs all
            of them together.
        rank: rank that is predicted; None for the one that needs the most memory. If `parallel` is empty, it
            is one of the ranks that a script's launcher starts.
        nonzero_share: share of its elements, from 0 to 1, that a boolean mask is assumed to select in a
            prediction, which does not know the mask's values.
        torch: release of PyTorch, such as `2.8`, that a prediction follows; None for the installed one.
        allows_long: whether a sample may be longer than the model was made for.
        allows_network: whether a workload that is predicted may use the network.
        allows_subprocesses: whether a workload that is predicted may start processes on a machine where no
            process boundary keeps them from changing anything.
        kept_variables: environment variables that a predicted workload gets although they may hold secrets.
        most_host_bytes: bytes of this machine's memory that the trial's processes may hold together; None for
            a share of the available memory.

    Raises:
        ValueError: there is no such mode, kind of batches, rank or followed release, or the share is not from
            0 to 1.
    """

    mode: str | None = None
    batch_kind: str = TYPICAL
    parallel: Parallel = field(default_factory=Parallel)
    rank: int | None = 0
    nonzero_share: float = LIKELY_SHARE
    torch: str | None = None
    allows_long: bool = False
    allows_network: bool = False
    allows_subprocesses: bool = False
    kept_variables: tuple[str, ...] = ()
    most_host_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for a mode, kind of batches, rank or share that does not exist."""
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if self.batch_kind not in BATCH_KINDS:
            raise ValueError(f"batch_kind must be one of {', '.join(BATCH_KINDS)}; got {self.batch_kind!r}")
        if self.rank is None and not self.parallel:
            raise ValueError(
                f"--rank {ALL} is of the ranks of --parallel, as in fsdp:8: add those, or drop it"
            )
        if self.rank is not None and (self.rank < 0 or (self.parallel and self.rank >= self.num_ranks)):
            last = self.num_ranks - 1
            raise ValueError(f"--rank {self.rank}: the ranks of {self.parallel} are 0 to {last}")
        if not 0 <= self.nonzero_share <= 1:
            raise ValueError(f"nonzero_share must be from 0 to 1; got {self.nonzero_share}")
        if self.torch is not None:
            object.__setattr__(self, "torch", followed_release(self.torch))

    @property
    def num_ranks(self) -> int:
        return self.parallel.num_ranks

    @property
    def is_worst_case(self) -> bool:
        return self.batch_kind == WORST

    def with_other_batches(self) -> Self:
        """Copy with the other kind of batches: the largest that the data can make, or typical ones."""
        return dataclasses.replace(self, batch_kind=TYPICAL if self.is_worst_case else WORST)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls(
            **{
                **data,
                "parallel": from_plain(Parallel, data["parallel"]),
                "kept_variables": tuple(data.get("kept_variables", ())),
            }
        )


ALONE = Setup()
