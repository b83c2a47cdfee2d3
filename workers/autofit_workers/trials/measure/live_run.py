"""Reads the peak memory of a training loop in this process, while it runs, without changing anything of it.

Peak statistics are read and never reset, as the loop may rely on them. They only rise until somebody resets
them, so a reading that differs from the one before tells a peak of the time between the two: a larger one was
reached since, and a smaller one is a peak since a reset. An equal one tells nothing, as the peak may be older
than the loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from autofit_workers.process import host_memory
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.errors import DeviceError, UnsupportedError
from autofit_workers.spec.protocol import Device
from autofit_workers.trials.measure.card import Nvml
from autofit_workers.trials.outcomes import processor_name

_cuda: Any = torch.cuda  # untyped

Reading = Callable[[], dict[int, tuple[int, int]]]


class RunningPeak:
    """Peak, since a first reading, of a statistic that only rises, except where somebody resets it.

    Attributes:
        before_bytes: the first reading.
        inside_bytes: peak since then; None if it is not above what was reached before.
    """

    def __init__(self, now_bytes: int) -> None:
        self.before_bytes = now_bytes
        self.inside_bytes: int | None = None
        self._last_bytes = now_bytes

    def note(self, now_bytes: int) -> None:
        """Takes another reading of the statistic into account."""
        if now_bytes != self._last_bytes:
            self.inside_bytes = max(self.inside_bytes or 0, now_bytes)
        self._last_bytes = now_bytes


def peaks_of_cards() -> dict[int, tuple[int, int]]:
    """Allocated and reserved peak of each card in bytes, by its number; empty if CUDA is not in use."""
    if not (torch.cuda.is_available() and _cuda.is_initialized()):
        return {}
    return {
        card: (torch.cuda.max_memory_allocated(card), torch.cuda.max_memory_reserved(card))
        for card in range(torch.cuda.device_count())
    }


class LivePeaks:
    """Peaks of the device that a model is on, from now on.

    They are read when `note` is called, which follows each step of the optimizers until `close`.

    Args:
        model: the model, which may move to its device later.
        optimizers: optimizers whose steps count; none for a loop that does not train.
        read: returns the allocated and the reserved peak of each card.

    Attributes:
        num_steps: number of steps that the first optimizer has finished.

    Raises:
        DeviceError: PyTorch keeps no peak statistics on the model's device.
        UnsupportedError: `model` is no `nn.Module`.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, read: Reading = peaks_of_cards
    ) -> None:
        self.num_steps = 0
        self._read = read
        self._has_begun = False
        self._model = model
        self._resident = RunningPeak(host_memory.peak_resident_bytes())
        self._cards: dict[int, tuple[RunningPeak, RunningPeak]] = {}
        require_peaks(model)
        self._note_cards()
        self._hooks = [
            optimizer.register_step_post_hook(self._after_step(is_first=index == 0))
            for index, optimizer in enumerate(optimizers)
        ]

    def note(self) -> None:
        """Reads the statistics once more, which takes microseconds and waits for nothing."""
        self._resident.note(host_memory.peak_resident_bytes())
        self._note_cards()

    def close(self) -> None:
        """Reads the statistics a last time, and takes the hooks off the optimizers."""
        self.note()
        for hook in self._hooks:
            hook.remove()

    @property
    def device(self) -> Device:
        """Device that the model is on now: of several cards, the one with the largest peak."""
        card = self._card()
        if card is None:
            return Device(kind="cpu", name=processor_name())
        return Device(kind=GPU_KIND, name=torch.cuda.get_device_name(card), driver=self._driver(card))

    def before(self) -> dict[str, int | None]:
        """Peaks of the process before, by the names of `inside`; 0 on a card that it did not use."""
        card = self._card()
        if card is None:
            return {"resident_bytes": self._resident.before_bytes}
        allocated, reserved = self._cards[card]
        return {"allocated_bytes": allocated.before_bytes, "reserved_bytes": reserved.before_bytes}

    def inside(self) -> dict[str, int | None]:
        """Peaks since the beginning by name, each None if it is not above what was reached before.

        They are `allocated_bytes`, `reserved_bytes` and `device_bytes` on a card, and `resident_bytes`, of
        the whole process, on the CPU.
        """
        card = self._card()
        if card is None:
            return {"resident_bytes": self._resident.inside_bytes}
        allocated, reserved = (peak.inside_bytes for peak in self._cards[card])
        return {
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "device_bytes": None if reserved is None else self._device_bytes(card, reserved),
        }

    def _after_step(self, *, is_first: bool) -> Callable[..., None]:
        def after_step(*_: object) -> None:
            self.num_steps += is_first
            self.note()

        return after_step

    def _note_cards(self) -> None:
        for card, readings in self._read().items():
            if card not in self._cards:
                # Nothing was on a card that was not in use at the beginning.
                first = (0, 0) if self._has_begun else readings
                self._cards[card] = RunningPeak(first[0]), RunningPeak(first[1])
            for peak, reading in zip(self._cards[card], readings, strict=True):
                peak.note(reading)
        self._has_begun = True

    def _card(self) -> int | None:
        require_peaks(self._model)
        cards = {each.index or 0 for each in _devices(self._model) if each.type == GPU_KIND}
        return max(cards & self._cards.keys(), key=self._reserved_bytes, default=None)

    def _reserved_bytes(self, card: int) -> int:
        _, reserved = self._cards[card]
        return reserved.inside_bytes or 0

    def _nvml(self, card: int) -> Nvml | None:
        return Nvml.of_card(str(torch.cuda.get_device_properties(card).uuid))

    def _driver(self, card: int) -> str | None:
        nvml = self._nvml(card)
        return None if nvml is None else nvml.driver_version

    def _device_bytes(self, card: int, reserved_bytes: int) -> int | None:
        """Reserved peak and what the process holds outside the allocator now; None if NVML does not say."""
        nvml = self._nvml(card)
        held_bytes = None if nvml is None else nvml.bytes_of(os.getpid())
        if held_bytes is None:
            return None
        return reserved_bytes + max(0, held_bytes - torch.cuda.memory_reserved(card))


def require_peaks(model: nn.Module) -> None:
    """Raises an error if a model is no model, or if PyTorch keeps no peak statistics on a device of it."""
    if not isinstance(model, nn.Module):
        raise UnsupportedError(
            f"{type(model).__name__} is no model: give the nn.Module that is trained first"
        )
    others = {each.type for each in _devices(model)} - {GPU_KIND, "cpu"}
    if others:
        raise DeviceError(
            f"the model is on {', '.join(sorted(others))}, where no peak is kept: peaks are observed on CUDA "
            "and ROCm cards and on the CPU"
        )


def _devices(model: nn.Module) -> Iterator[torch.device]:
    return (tensor.device for tensor in model.parameters())


def torchs_own(optimizer: object) -> torch.optim.Optimizer:
    """Optimizer of PyTorch's that an optimizer is, or that a library (Accelerate, Lightning) has wrapped.

    Raises:
        UnsupportedError: it is none.
    """
    seen: list[object] = []
    while not hasattr(optimizer, "_optimizer_step_post_hooks"):
        seen.append(optimizer)
        optimizer = getattr(optimizer, "optimizer", None)
        if optimizer is None or optimizer in seen:
            raise UnsupportedError(
                f"{type(seen[0]).__name__} is no optimizer of PyTorch: give the model and its optimizer, as "
                "in autofit.observed(model, optimizer)"
            )
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def rank_and_ranks() -> tuple[int, int]:
    """Number of this rank, and of all ranks that train together; 0 and 1 without a process group."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
