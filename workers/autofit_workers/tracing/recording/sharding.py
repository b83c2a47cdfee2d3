"""Categories for memory that sharding libraries allocate, such as gathered whole parameters.

No part of the step is repeated here: PyTorch's own code runs, with a category for what it allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from autofit_workers.apply.parallel.strategy import Followed
from autofit_workers.spec.trace import Category
from autofit_workers.tracing.recording.recorder import Recorder


@contextmanager
def followed(recorder: Recorder, kinds: Iterable[Followed]) -> Iterator[None]:
    """Context that sets the category of memory that the methods in `kinds` allocate.

    For DDP it sets the module too.

    Args:
        kinds: as `Strategy.followed` has them.
    """
    with ExitStack() as kept:
        for methods in kinds:
            for owner, categories in methods.items():
                module = owner.__name__ if owner is DistributedDataParallel else None
                for name, category in categories.items():
                    plain = getattr(owner, name)
                    kept.callback(setattr, owner, name, plain)
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
