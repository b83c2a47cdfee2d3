"""Layers of a model on several cards of one process: `from_pretrained(..., device_map="auto")`.

    card 0   embeddings, layers 0 …      the batch; a layer's inputs are moved to its card by a hook
    card 1   … the last layers, head     the loss, where the model computes it
    …

One card works at a time. Layers are assigned to cards by transformers' own function for its models and by
accelerate's for others, as if every card had room for all layers. accelerate's hooks move activations.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autofit_workers.apply.checkpointing import repeated_blocks
from autofit_workers.apply.parallel.strategy import Dealt, Strategy
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs.base import QUANTIZATIONS, Bitsandbytes, is_of_bitsandbytes
from autofit_workers.spec.parallel_kinds import DEVICE_MAP
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.transformers_releases import device_maps_module
from autofit_workers.workload.workload import Workload

_ROOM = 2**60  # bytes stated for each card, so that no layer goes to the host
_DEALT = "hf_device_map"  # attribute in which accelerate keeps the map


class DeviceMapCards(Strategy):
    """Several cards of one process, each of which holds successive layers of a model."""

    def require_applicable(self, spec: TrialSpec, _workload: Workload) -> None:
        if spec.is_for_host:
            raise InapplicableError(
                f"--parallel {self.parallel} deals layers out to GPUs, and here the CPU is predicted: leave "
                "one of the two out"
            )

    def takes_base(self, base: str) -> bool:
        return is_of_bitsandbytes(base)

    def dealt(self, model: nn.Module, base: str | None) -> Dealt:
        """Assignment of a model's modules to the cards; raises `InapplicableError` if some card gets none."""
        num_cards = self.parallel.degree(DEVICE_MAP)
        found = _device_map(model, num_cards, base)
        num_used = len(set(found.values()))
        if num_used < num_cards:
            fewer = f"use device-map:{num_used}" if num_used > 1 else "leave the option out"
            raise InapplicableError(
                f"--parallel {self.parallel}: accelerate puts this model on {num_used} of the cards, as its "
                f"largest layers have no room for more: {fewer}"
            )
        model.__dict__[_DEALT] = found
        devices = {module: _card(_number_of(path, found)) for path, module in model.named_modules()}
        return Dealt(device_of=devices.__getitem__, link=lambda: _link(model, found))

    def notes(self, model: nn.Module, _precision: str) -> tuple[str, ...]:
        found = next(each.__dict__[_DEALT] for each in model.modules() if _DEALT in each.__dict__)
        cards = (
            f"card {card} has {_in_words([path for path, its in found.items() if its == card])}"
            for card in sorted(set(found.values()))
        )
        return (
            f"{'; '.join(cards)}; one card works at a time, and all are in one process",
            "layers are dealt out as where every card has room: where one has not, accelerate leaves what is "
            "beyond it to the host",
        )


STRATEGY = DeviceMapCards


def _device_map(model: nn.Module, num_cards: int, base: str | None) -> dict[str, int]:
    """Number of the GPU for each part of a model, by path, as transformers or accelerate would assign it.

    Args:
        model: the model, on the host.
        num_cards: number of GPUs.
        base: type of the base weights (the knob `base`), which decides their sizes; None for their own.
    """
    accelerate: Any = imported("accelerate", f"--parallel {DEVICE_MAP}", "a way of dealing out layers")
    room: dict[int | str, int] = dict.fromkeys(range(num_cards), _ROOM)
    with _silent():
        if hasattr(model, "_no_split_modules"):
            return dict(_of_transformers(model, room, base))
        utils = accelerate.utils
        blocks = sorted({type(block).__name__ for _, block in repeated_blocks(model)})
        balanced = utils.get_balanced_memory(model, max_memory=room, no_split_module_classes=blocks)
        return dict(utils.infer_auto_device_map(model, max_memory=balanced, no_split_module_classes=blocks))


def _of_transformers(model: Any, room: Mapping[int | str, int], base: str | None) -> Mapping[str, int]:
    """Device map that transformers' `device_map="auto"` makes: number of a GPU by module path."""
    accelerate = device_maps_module(f"--parallel {DEVICE_MAP}")
    no_split = model._no_split_modules  # noqa: SLF001 - as `from_pretrained` asks
    quantizer = _quantizer(base)
    balanced = accelerate.get_balanced_memory(model, dict(room), no_split, quantizer)
    if quantizer is not None:
        balanced = quantizer.adjust_max_memory(balanced)
    found: Mapping[str, int] = accelerate.infer_auto_device_map(
        model,
        balanced,
        no_split,
        hf_quantizer=quantizer,
        no_placement_params=getattr(model, "_no_placement_params", None),
    )
    return found


def _quantizer(base: str | None) -> Any:
    """Transformers' quantizer, which computes sizes of bitsandbytes' weights; None if `base` has none."""
    quantization = QUANTIZATIONS.get(base or "")
    if not isinstance(quantization, Bitsandbytes):
        return None
    transformers: Any = imported("transformers", f"base {base}", "a quantization")
    quantizers: Any = importlib.import_module("transformers.quantizers")
    bits = {f"load_in_{4 if quantization.has_compute_type else 8}bit": True}
    return quantizers.AutoHfQuantizer.from_config(transformers.BitsAndBytesConfig(**bits))


def _link(model: nn.Module, found: Mapping[str, int]) -> None:
    """Puts accelerate's hooks on a model split over cards, as accelerate's `dispatch_model` does.

    `dispatch_model` itself finds shared weights by their addresses, which weights in a prediction lack.
    """
    from accelerate.big_modeling import attach_align_device_hook_on_blocks

    cards = {path: _card(number) for path, number in {**found, "": min(found.values())}.items()}
    attach_align_device_hook_on_blocks(
        model,
        execution_device=cards,
        offload=dict.fromkeys(found, False),
        skip_keys=getattr(model, "_skip_keys_device_placement", None),
    )


def _card(number: int) -> torch.device:
    return torch.device("cuda", number)


def _number_of(path: str, found: Mapping[str, int]) -> int:
    """Number of the GPU that a module is on, by its path; the first one if the device map does not cover it.

    Args:
        path: path of the module in the model.
        found: device map, the number of a GPU by path.
    """
    parts = path.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((found[prefix] for prefix in prefixes if prefix in found), min(found.values()))


def _in_words(paths: list[str]) -> str:
    first, *_, last = (*paths, paths[-1])
    return first if len(paths) == 1 else f"{first} to {last}" if len(paths) > 2 else " and ".join(paths)


@contextmanager
def _silent() -> Iterator[None]:
    """Context manager that silences accelerate's log messages, which are about absent cards."""
    logger = logging.getLogger("accelerate.utils.modeling")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
