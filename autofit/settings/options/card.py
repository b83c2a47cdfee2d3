"""Settings of the card, and of where to measure."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.hardware.gpus import Gpu
from autofit.settings import values
from autofit.settings.options.option import Option, Topic
from autofit_workers.spec.devices import DEVICE_KINDS

_DEVICES = ("auto", *DEVICE_KINDS)
_PROBES = ("auto", "predict", "measure")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CardSettings:
    """Settings of the card, and of whether and where to measure; all are options of `autofit tune`.

    Without `gpu` and `gpu_mem_bytes`, the card is that of this machine. With `device="cpu"`, `gpu_mem_bytes`
    is the memory that the process may use.
    """

    gpu_mem_bytes: int | None = Option(
        values.size,
        "Total memory of the device: 16G is 16 × 1024³ bytes, 16GB is 16 × 1000³.",
        name="gpu-mem",
        topic=Topic.CARD,
        is_common=True,
        metavar="SIZE",
        choice="card",
    ).with_default(None)
    gpu: Gpu | None = Option(
        values.cards,
        "The card, such as rtx-3090; `autofit gpus` lists them.",
        topic=Topic.CARD,
        is_common=True,
        metavar="CARD",
        choice="card",
    ).with_default(None)
    device: str = Option(
        values.one_of(_DEVICES),
        "Where to measure. cpu counts the memory of the process.",
        topic=Topic.CARD,
        choices=_DEVICES,
        of_search=True,
    ).with_default("auto")
    probe: str = Option(
        values.one_of(_PROBES),
        "auto measures where the device is here or at --address, and predicts elsewhere.",
        topic=Topic.CARD,
        choices=_PROBES,
        of_search=True,
    ).with_default("auto")
