"""Says what the memory of `fully_shard` is: whole parameters, and what is on its way between ranks.

Of the step itself nothing is repeated here: PyTorch's own code runs, with a name for what it allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from workers.predict.recording.recorder import Recorder
from workers.trace import Category

# Of `FSDPParamGroup`, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py. A gradient that stays is
# told apart later, as every one.
_CATEGORIES = {
    "unshard": Category.OTHER,
    "wait_for_unshard": Category.PARAMETER,
    "post_backward": Category.OTHER,
}


@contextmanager
def followed(recorder: Recorder) -> Iterator[None]:
    """Names what sharded models allocate in the block."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    group: Any = FSDPParamGroup
    plain = {name: getattr(group, name) for name in _CATEGORIES}
    for name, category in _CATEGORIES.items():
        setattr(group, name, _named(plain[name], recorder, category))
    try:
        yield
    finally:
        for name, method in plain.items():
            setattr(group, name, method)


def _named(method: Callable[..., Any], recorder: Recorder, category: Category) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        before, recorder.category = recorder.category, category
        try:
            return method(*args, **kwargs)
        finally:
            recorder.category = before

    return called
