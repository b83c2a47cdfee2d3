"""Disables the batch-size searches of Lightning and Ultralytics in a script, and reports Accelerate's.

Such a search tries sizes until the card's memory is exhausted. The memory of a fake GPU never is, and a trial
ends within its first steps, so the result would be for the first size of the search. Therefore the
search is skipped, the script trains with its own batch size, and a note in the result says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autofit_workers.workload.libraries.finders import when_imported

_Note = Callable[[str], None]
_ASK = "ask `autofit tune` for the largest that fits"


def leave_out_searches(note: _Note) -> None:
    """Disables the batch-size searches of libraries that this process imports from now on; not undone.

    Args:
        note: called with a sentence for the reader of the answer.
    """
    for package in ("pytorch_lightning", "lightning.pytorch"):
        when_imported(f"{package}.callbacks.batch_size_finder", functools.partial(_of_lightning, note))
    when_imported("accelerate.utils.memory", functools.partial(_of_accelerate, note))
    when_imported("ultralytics.utils.autobatch", functools.partial(_of_ultralytics, note))


def _of_lightning(note: _Note, module: ModuleType) -> None:
    """Disables Lightning's `BatchSizeFinder`, which `Tuner.scale_batch_size` runs too."""
    names: Any = module

    def scale(trainer: Any, *_args: Any, batch_arg_name: str = "batch_size", **_kwargs: Any) -> int | None:
        from importlib import import_module

        parsing: Any = import_module(f"{module.__name__.rpartition('.callbacks.')[0]}.utilities.parsing")
        own: int | None = parsing.lightning_getattr(trainer.lightning_module, batch_arg_name)
        note(f"Lightning's search for a batch size was left out, and the model's own is {own}: {_ASK}")
        return own

    names._scale_batch_size = scale  # noqa: SLF001 - the name by which the callback calls it


def _of_accelerate(note: _Note, module: ModuleType) -> None:
    """Adds a note for the user if the script calls Accelerate's `find_executable_batch_size`.

    transformers calls it for `auto_find_batch_size`.
    """
    names: Any = module
    find = names.find_executable_batch_size

    @functools.wraps(find)
    def noted(function: Any = None, starting_batch_size: int = 128, **options: Any) -> Any:
        if function is None:
            return functools.partial(noted, starting_batch_size=starting_batch_size, **options)
        run = find(function, starting_batch_size=starting_batch_size, **options)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            note(
                f"the script begins with a batch of {starting_batch_size}, and tries smaller ones where that "
                f"runs out of memory: {_ASK}"
            )
            return run(*args, **kwargs)

        return called

    names.find_executable_batch_size = noted


def _of_ultralytics(note: _Note, module: ModuleType) -> None:
    """Disables Ultralytics' AutoBatch, which runs for `batch=-1` or a share of the card."""
    names: Any = module
    default = inspect.signature(names.autobatch).parameters["batch_size"].default

    def keep(*_args: Any, batch_size: int = default, **_kwargs: Any) -> int:
        note(f"Ultralytics' search for a batch size was left out for its default of {batch_size}: {_ASK}")
        return batch_size

    names.autobatch = keep
