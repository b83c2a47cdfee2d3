"""Warm tracer of the command line: used by each command that traces, and left behind for the next one.

It is a process with PyTorch imported, which forks where a command would start a process and import PyTorch
anew.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import suppress

from autofit import paths, surroundings
from autofit.errors import StorageError
from autofit.identity import fingerprint
from autofit_workers.process import warm_tracer
from autofit_workers.process.warm_tracer import TracerState, WarmTracer
from autofit_workers.trials import isolate

# Modules that a model needs besides PyTorch, by the beginning of its name.
_LIBRARIES = {"hf:": ("transformers.modeling_utils", "transformers.pytorch_utils"), "timm:": ("timm",)}


def use(words: Iterable[str]) -> None:
    """Lets this command be answered by a warm tracer, where one runs.

    Args:
        words: arguments of this command, as typed, by which the tracer imports what its model needs.
    """
    with suppress(OSError, StorageError):  # this system has none, or a state directory that is reported later
        isolate.use_warm_tracer(_tracer(_libraries_of(words)))


def leave() -> None:
    """Starts a tracer for later commands, if this one has looked for one and found none."""
    with suppress(StorageError):  # later commands start processes of their own
        isolate.leave_warm_tracer(paths.warm_dir)


def _libraries_of(words: Iterable[str]) -> list[str]:
    models = [word.rpartition("=")[2] for word in words]
    return [
        library
        for prefix, libraries in _LIBRARIES.items()
        if any(model.startswith(prefix) for model in models)
        for library in libraries
    ]


def state() -> TracerState | None:
    """State of the running warm tracer; None if none runs here."""
    try:
        return _tracer().state()
    except (OSError, StorageError):
        return None


def _tracer(libraries: Sequence[str] = ()) -> WarmTracer:
    """Access to the warm tracer for commands with the surroundings of this one.

    Args:
        libraries: modules that it has imported besides PyTorch.

    Raises:
        OSError: this system has none.
    """
    of_process = warm_tracer.of_this_process()

    @functools.cache  # each fork of a command asks for it
    def digest() -> str:
        return fingerprint(
            {
                "process": of_process,
                "variables": surroundings.environment((), with_secrets=False, on_this_machine=True),
                "packages": surroundings.installed_packages(),
                "autofit": surroundings.own_files(),
            }
        )

    return WarmTracer(paths.warm_path(), digest, libraries=libraries)
