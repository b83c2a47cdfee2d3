"""Makes transformers treat fake tensors as those of a real GPU.

For transformers a fake tensor means that the program is being compiled or exported, and it then behaves
differently: it makes an attention mask even for a batch without padding (`_ignore_causal_mask_sdpa` of
masking_utils.py, `is_tracing` of utils/import_utils.py, transformers 5).

A program that distributes layers over GPUs (`device_map="auto"`) sees one GPU here; a note tells the user.
"""

from __future__ import annotations

import functools
from typing import Any

from autofit_workers.workload.libraries.finders import when_imported
from autofit_workers.workload.libraries.transformers_releases import when_device_map_is_made

_dealt_out: list[str] = []


@functools.cache
def install() -> None:
    """Makes transformers treat fake tensors as plain tensors, in this process for good."""
    when_imported("transformers.utils.import_utils", _answer)
    when_device_map_is_made(_dealt_out.append)


def begin_program() -> None:
    """Forgets the device maps of an earlier script or workload in this process."""
    _dealt_out.clear()


def notes() -> tuple[str, ...]:
    """Notes for the user about `device_map` settings that were followed with one card, a sentence each."""
    return tuple(
        f'device_map="{how}" was followed with one card: for several, give the model with --parallel '
        "device-map:N"
        for how in dict.fromkeys(_dealt_out)
    )


def _answer(module: Any) -> None:
    if hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda _tensor: False
