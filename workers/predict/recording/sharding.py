"""Says what the memory of both FSDPs and of DDP is: whole parameters, and what is on its way between ranks.

Of the step itself nothing is repeated here: PyTorch's own code runs, with a name for what it allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from workers.predict.recording.recorder import Recorder
from workers.trace import Category

# A gradient that stays is told apart later, as every one.
_OF_FULLY_SHARD = {  # of `FSDPParamGroup`, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
    "unshard": Category.OTHER,
    "wait_for_unshard": Category.PARAMETER,
    "post_backward": Category.OTHER,
}
_OF_FSDP1 = {  # of `FlatParamHandle`, torch/distributed/fsdp/_flat_param.py
    "init_flat_param_attributes": Category.OTHER,
    "pre_unshard": Category.OTHER,
    "unshard": Category.PARAMETER,
}

_OF_DDP = {  # of `DistributedDataParallel`, torch/nn/parallel/distributed.py
    "_ddp_init_helper": Category.GRADIENT,
    "_pre_forward": Category.GRADIENT,
}


_OF_ZERO = {"fetch_sub_module": Category.PARAMETER}  # runtime/zero/partitioned_param_coordinator.py


@contextmanager
def followed(recorder: Recorder, *, has_zero: bool = False) -> Iterator[None]:
    """Names what sharded models allocate in the block.

    Args:
        has_zero: whether DeepSpeed shards, which is imported for it.
    """
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    followed_classes: Any = (
        (FSDPParamGroup, _OF_FULLY_SHARD),
        (FlatParamHandle, _OF_FSDP1),
        (DistributedDataParallel, _OF_DDP),
    )
    if has_zero:
        from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

        followed_classes += ((PartitionedParameterCoordinator, _OF_ZERO),)
    with ExitStack() as kept:
        for owner, categories in followed_classes:
            for name, category in categories.items():
                plain = getattr(owner, name)
                kept.callback(setattr, owner, name, plain)
                module = owner.__name__ if owner is DistributedDataParallel else None
                setattr(owner, name, _named(plain, recorder, category, module))
        yield


def _named(
    method: Callable[..., Any], recorder: Recorder, category: Category, module: str | None
) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        before, recorder.category = recorder.category, category
        try:
            with nullcontext() if module is None else recorder.within(module):
                return method(*args, **kwargs)
        finally:
            recorder.category = before

    return called
