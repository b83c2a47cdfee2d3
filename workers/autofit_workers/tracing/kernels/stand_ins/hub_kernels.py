"""Stand-in for `kernels`, which loads kernels that others compiled from the Hugging Face Hub.

A compiled kernel needs a GPU. So `get_kernel` returns a stand-in for the repositories whose kernels are
known, and refuses the others. Source of its signature: kernels 0.16, src/kernels/utils.py.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.kernels.stand_ins import flash_attn3

__all__ = ["get_kernel", "has_kernel"]

# Repositories with FlashAttention 3: the functions of `flash_attn_interface`, which they hold as a module and
# most of them at their top too. Builds differ in what they compile and not in what is allocated.
_FLASH_ATTENTION_3 = frozenset({"kernels-community/flash-attn3", "varunneal/flash-attention-3"})
_used: dict[str, None] = {}  # repositories that the current program loaded


def begin_program() -> None:
    """Forgets which kernels an earlier script or workload in this process loaded."""
    _used.clear()


def notes() -> tuple[str, ...]:
    """Notes for the user about kernels that a stand-in replaced, a sentence each."""
    return tuple(
        f"kernels of {name} are not loaded here: they are followed by what those of flash-attn-3 take"
        for name in _used
    )


def replace_get_kernel(kernels: Any) -> None:
    """Makes the installed library `kernels` return stand-ins, in this process for good."""
    kernels.get_kernel, kernels.has_kernel = get_kernel, has_kernel


def get_kernel(repo_id: str, *_args: Any, **_options: Any) -> ModuleType:
    """Module with the functions of a repository's kernels; nothing is downloaded.

    Raises:
        UnsupportedError: what its kernels take is not known.
    """
    if repo_id not in _FLASH_ATTENTION_3:
        known = " and ".join(sorted(_FLASH_ATTENTION_3))
        raise UnsupportedError(
            f"get_kernel loads compiled kernels of {repo_id}, and what they allocate is not known (it is of "
            f"{known}): measure instead"
        )
    _used[repo_id] = None
    made = ModuleType(repo_id.rpartition("/")[2].replace("-", "_"))
    interface = ModuleType(f"{made.__name__}.flash_attn_interface")
    for module in (interface, made):
        vars(module).update({name: getattr(flash_attn3, name) for name in flash_attn3.__all__})
        sys.modules[module.__name__] = module
    vars(made)["flash_attn_interface"] = interface
    return made


def has_kernel(repo_id: str, *_args: Any, **_options: Any) -> bool:
    """Whether a repository's kernels are known."""
    return repo_id in _FLASH_ATTENTION_3
