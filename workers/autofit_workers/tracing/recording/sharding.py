"""Categories for memory that sharding libraries allocate, such as gathered whole parameters.

The code of PyTorch or the library itself runs; only the category of its allocations is set.
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
    """Context that sets the category of the memory that some methods of libraries allocate.

    Allocations of `DistributedDataParallel` are also recorded under its name as their module.

    Args:
        kinds: by class, its methods with their category, as `Strategy.followed` returns them.
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
