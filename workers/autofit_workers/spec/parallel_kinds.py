"""Kinds of parallelism: what each is, how users type it, and which kinds it combines with.

`autofit_workers.apply.parallel` implements each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from autofit_workers.spec.pipeline import SCHEDULES

DDP, REPLICATE, FSDP, CP, EP, TP, PP = "ddp", "replicate", "fsdp", "cp", "ep", "tp", "pp"
FSDP_CP = "fsdp_cp"  # mesh dimension that serves both: parameters are sharded over the ranks of a context too
DEVICE_MAP = "device-map"
SCRIPT = "script"  # ranks that a training script starts, and among which it shares out the work itself
OFFLOAD = "+offload"


class FirstFsdp(NamedTuple):
    """Sharding by `FullyShardedDataParallel`, PyTorch's first FSDP: its strategy, and whether it offloads.

    Attributes:
        strategy: the name of its `ShardingStrategy`.
        offloads: whether `CPUOffload` keeps shards, gradients and optimizer states in host memory.
    """

    strategy: str
    offloads: bool = False


_STRATEGIES = {"fsdp1": "FULL_SHARD", "fsdp1+grad-op": "SHARD_GRAD_OP", "fsdp1+no-shard": "NO_SHARD"}
FSDP1 = {
    f"{kind}{suffix}": FirstFsdp(strategy, bool(suffix))
    for kind, strategy in _STRATEGIES.items()
    for suffix in ("", OFFLOAD)
}


class Zero(NamedTuple):
    """Sharding by DeepSpeed's ZeRO: its stage, and whether it offloads.

    Attributes:
        stage: 1 shards optimizer states, 2 gradients too, 3 parameters too.
        offloads: whether host memory keeps optimizer states, and in stage 3 parameters too.
    """

    stage: int
    offloads: bool = False


ZERO = {f"zero{stage}{suffix}": Zero(stage, bool(suffix)) for stage in (1, 2, 3) for suffix in ("", OFFLOAD)}


class Kind(NamedTuple):
    """Properties of a kind of parallelism, such as data or tensor parallelism.

    Attributes:
        in_words: its name in words.
        file: the module of `autofit_workers.apply.parallel` that implements it; empty for a script's ranks.
        forms: its forms as `--parallel` takes them, and the meaning of each.
        goes_with: kinds that it can be combined with; None for every kind that can be combined with it.
        why_not: error text for a combination that is not allowed.
        shards: whether each rank holds only a part of the parameters, or of each sample.
        shares_batches: whether all its ranks are given the same batches.
        runs_apart: whether its ranks run different parts of a model, such as pipeline stages.
        casts: whether it casts parameters itself in mixed precision, so autocast is not used.
        leaves_inputs: whether it does not cast the inputs of an adapter's layers, so autocast is used
            for them all the same.
        can_be_measured: whether autofit can run the ranks together; if not, they are only predicted.
        has_processes: whether each rank is a process; if not, the ranks are the cards of one process.
    """

    in_words: str
    file: str
    forms: Mapping[str, str]
    goes_with: frozenset[str] | None = None
    why_not: str = ""
    shards: bool = True
    shares_batches: bool = False
    runs_apart: bool = False
    casts: bool = False
    leaves_inputs: bool = False
    can_be_measured: bool = True
    has_processes: bool = True


_ALONE: frozenset[str] = frozenset()
_USE_FSDP = "goes with no other kind; use fsdp, as in fsdp:4,tp:2"
_FIRST_FSDP, _DEEPSPEED = (
    partial(
        Kind, file=file, goes_with=_ALONE, why_not=f"{file} {_USE_FSDP}", casts=True, leaves_inputs=leaves
    )
    for file, leaves in (("fsdp1", True), ("zero", False))
)
PARALLEL_KINDS = {
    DDP: Kind(
        "DistributedDataParallel",
        "ddp",
        {"ddp:N": "DistributedDataParallel"},
        goes_with=_ALONE,
        why_not="ddp goes with no other kind; for replicas of shards use hsdp:RxS",
        shards=False,
    ),
    REPLICATE: Kind("replicas of what fully_shard shards", "fsdp", {}),
    FSDP: Kind(
        "fully_shard",
        "fsdp",
        {
            "fsdp:N": "fully_shard on each repeated block and on the model",
            "hsdp:RxS": "R replicas of S shards",
            "fsdp:N+offload": "shards that the host keeps",
        },
        casts=True,
    ),
    TP: Kind(
        "tensor parallelism",
        "tp",
        {"tp:N": "tensor parallelism by the model's own plan"},
        shares_batches=True,
    ),
    CP: Kind(
        "context parallelism",
        "cp",
        {
            "cp:N": "context parallelism, whose ranks share each sequence",
            "fsdp:N,tp:M": "both, as fsdp:N,cp:M and fsdp:N,pp:M are",
        },
        goes_with=frozenset((FSDP,)),
        why_not="cp goes with fsdp and no other kind, as in fsdp:4,cp:2",
        shares_batches=True,
        can_be_measured=False,
    ),
    EP: Kind(
        "expert parallelism",
        "ep",
        {"ep:N": "expert parallelism, whose ranks have experts of their own and share a batch"},
        goes_with=frozenset((REPLICATE, FSDP)),
        why_not="ep goes with fsdp and hsdp and no other kind, as in fsdp:4,ep:2",
        shares_batches=True,
    ),
    PP: Kind(
        "a pipeline",
        "pp",
        {
            "pp:N": "a pipeline of N stages",
            "pp:N+SCHEDULE": f"that by {', '.join(SCHEDULES)}",
            "pp:N+SCHEDULE+M": "that with M microbatches",
        },
        goes_with=frozenset((REPLICATE, FSDP, TP)),
        why_not="a pipeline goes with fsdp, hsdp and tp, as in fsdp:4,pp:2",
        shares_batches=True,
        runs_apart=True,
    ),
    DEVICE_MAP: Kind(
        "a device map",
        "device_map",
        {"device-map:N": 'one process with the layers on N cards, by accelerate (device_map="auto")'},
        goes_with=_ALONE,
        why_not="device-map is of one process and goes with no other kind; use fsdp:N or pp:N",
        shards=False,
        shares_batches=True,
        runs_apart=True,
        can_be_measured=False,
        has_processes=False,
    ),
    "fsdp1": _FIRST_FSDP(
        "FullyShardedDataParallel, FULL_SHARD", forms={"fsdp1:N": "FullyShardedDataParallel"}
    ),
    "fsdp1+grad-op": _FIRST_FSDP(
        "FullyShardedDataParallel, SHARD_GRAD_OP",
        forms={"fsdp1:N+grad-op": "that with parameters that stay whole in a step"},
    ),
    "fsdp1+no-shard": _FIRST_FSDP(
        "FullyShardedDataParallel, NO_SHARD",
        forms={"fsdp1:N+no-shard": "that with parameters that always are"},
    ),
    "fsdp1+offload": _FIRST_FSDP(
        "FullyShardedDataParallel, FULL_SHARD, offloaded",
        forms={"fsdp1:N+offload": "that, or any of those before, where the host keeps what it can"},
    ),
    "fsdp1+grad-op+offload": _FIRST_FSDP("FullyShardedDataParallel, SHARD_GRAD_OP, offloaded", forms={}),
    "fsdp1+no-shard+offload": _FIRST_FSDP("FullyShardedDataParallel, NO_SHARD, offloaded", forms={}),
    "zero1": _DEEPSPEED("DeepSpeed's ZeRO 1", forms={"zero1:N": "DeepSpeed's ZeRO 1"}),
    "zero1+offload": _DEEPSPEED("DeepSpeed's ZeRO 1, offloaded", forms={}),
    "zero2": _DEEPSPEED("DeepSpeed's ZeRO 2", forms={"zero2:N": "ZeRO 2"}),
    "zero2+offload": _DEEPSPEED("DeepSpeed's ZeRO 2, offloaded", forms={}),
    "zero3": _DEEPSPEED("DeepSpeed's ZeRO 3", forms={"zero3:N": "ZeRO 3"}),
    "zero3+offload": _DEEPSPEED(
        "DeepSpeed's ZeRO 3, offloaded",
        forms={"zero3:N+offload": "that, or zero1:N or zero2:N, where the host keeps what it can"},
    ),
    SCRIPT: Kind("a script", "", {}, goes_with=_ALONE, shards=False, shares_batches=True),
}
# Kinds that can be combined, from the outermost dimension of the mesh of ranks to the innermost, whose ranks
# are numbered consecutively.
MESH = (PP, REPLICATE, FSDP, CP, EP, TP)
# Forms that `--parallel` takes, and the meaning of each.
PARALLEL_FORMS = {form: words for kind in PARALLEL_KINDS.values() for form, words in kind.forms.items()}
