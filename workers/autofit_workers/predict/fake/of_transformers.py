"""What transformers asks of tensors, answered as of those that a GPU has.

It takes a fake tensor for a sign that the program is compiled or exported, and then goes ways that no plain
run goes: the mask of a batch without padding is made and given to attention, which else takes none
(`_ignore_causal_mask_sdpa` of masking_utils.py, `is_tracing` of utils/import_utils.py, transformers 5).
"""

from __future__ import annotations

import functools
from typing import Any

from autofit_workers.workload.libraries.finders import when_imported


@functools.cache
def install() -> None:
    """From here on, in this process for good, fake tensors are tensors to it."""
    when_imported("transformers.utils.import_utils", _answer)


def _answer(module: Any) -> None:
    if hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda _tensor: False
