"""Lets stand-ins of attention's libraries be imported once a knob, a model or a program asks for one.

Before that, code that looks for a library finds that it is not installed. A program asks by an import that it
cannot do without (`needed`), a knob or a model by the attention that it names. transformers caches which
libraries are installed; these caches are cleared when a stand-in is offered or withdrawn.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.attention import IMPLEMENTATIONS
from autofit_workers.tracing.kernels.stand_ins import hub_kernels
from autofit_workers.tracing.kernels.stand_ins.finder import StandIn, StandInFinder
from autofit_workers.workload.libraries.finders import when_imported
from autofit_workers.workload.libraries.transformers_releases import (
    look_for_flash_attention_again,
    when_attention_is_decided,
)

_HERE = "autofit_workers.tracing.kernels.stand_ins"
FLASH_ATTENTION_2 = StandIn(
    package="flash_attn",
    distribution="flash-attn",
    version="2.8.3",
    oldest=(2, 7),
    modules={
        "flash_attn": f"{_HERE}.flash_attn2",
        "flash_attn.bert_padding": f"{_HERE}.flash_attn2_padding",
        "flash_attn.flash_attn_interface": f"{_HERE}.flash_attn2",
        "flash_attn.layers": f"{_HERE}.no_functions",
        "flash_attn.layers.rotary": f"{_HERE}.flash_attn2_rotary",
    },
)
FLASH_ATTENTION_3 = StandIn(
    package="flash_attn_interface",
    distribution="flash-attn-3",
    version="3.0.0",
    modules={"flash_attn_interface": f"{_HERE}.flash_attn3"},
)
HUB_KERNELS = StandIn(
    package="kernels",
    distribution="kernels",
    version="0.16.0",
    modules={"kernels": f"{_HERE}.hub_kernels"},
)
# By transformers' name of the attention implementation.
_LIBRARIES = {"flash_attention_2": FLASH_ATTENTION_2, "flash_attention_3": FLASH_ATTENTION_3}
_REMEMBERING = (
    "_package_distribution_mapping",
    "is_flash_attn_2_available",
    "is_flash_attn_3_available",
    "is_flash_attn_greater_or_equal",
    "is_torch_cuda_available",
)


@functools.cache
def install() -> None:
    """Lets programs and transformers models that ask for a library import a stand-in if it is missing.

    The stand-in predicts the library's memory. Lasts until the process ends.
    """
    when_attention_is_decided(_offered)
    if HUB_KERNELS.is_installed:
        when_imported(HUB_KERNELS.package, hub_kernels.replace_get_kernel)


def begin_program() -> None:
    """Withdraws the stand-ins that were offered to an earlier script or workload in this process."""
    hub_kernels.begin_program()
    if _finder.offered:
        _finder.withdraw()
        _forget()


def notes() -> tuple[str, ...]:
    """Notes for the user about libraries that a stand-in replaced, a sentence each."""
    offered = [each for each in _finder.offered.values() if each is not HUB_KERNELS]
    return (*(stand_in.note for stand_in in offered), *hub_kernels.notes())


def offer_for(knobs: Knobs) -> None:
    """Makes a stand-in importable for the library that a knob setting's attention needs, if it has one.

    Raises:
        UnsupportedError: the installed release of the library cannot be followed.
    """
    if (implementation := IMPLEMENTATIONS.get(knobs.attention)) is not None:
        offer(implementation.name)


def offer(implementation: str) -> None:
    """Makes the stand-in importable for the library of an attention implementation of transformers.

    Does nothing if the library is installed, or if the implementation needs no library with a stand-in.

    Args:
        implementation: transformers' name, such as `flash_attention_2`.

    Raises:
        UnsupportedError: the installed release cannot be followed.
    """
    stand_in = _LIBRARIES.get(implementation)
    if stand_in is None:
        return
    if stand_in.is_installed:
        stand_in.require_followed()
        return
    _finder.offer(stand_in)
    _forget()


def _forget() -> None:
    """Clears transformers' caches of which libraries are installed, so that transformers looks again."""
    module = sys.modules.get("transformers.utils.import_utils")
    for name in _REMEMBERING:
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear is not None:
            clear()
    look_for_flash_attention_again()


def _offered(implementation: Any) -> Any:
    offer(implementation)
    return implementation


_finder = StandInFinder((FLASH_ATTENTION_2, FLASH_ATTENTION_3, HUB_KERNELS), _forget)
