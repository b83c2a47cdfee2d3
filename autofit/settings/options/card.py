"""Options of `autofit tune` that name the card and say where to measure."""

from __future__ import annotations

from autofit.settings import values
from autofit.settings.options.option import Option, Topic

_DEVICES = ("auto", "cuda", "cpu")
_PROBES = ("auto", "predict", "measure")

CARD = (
    Option(
        name="gpu-mem",
        topic=Topic.CARD,
        is_common=True,
        field="gpu_mem_bytes",
        read=values.size,
        help="Total memory of the device: 16G is 16 × 1024³ bytes, 16GB is 16 × 1000³.",
        metavar="SIZE",
        choice="card",
    ),
    Option(
        name="gpu",
        topic=Topic.CARD,
        is_common=True,
        field="gpu",
        read=values.cards,
        help="The card, such as rtx-3090; `autofit gpus` lists them.",
        metavar="CARD",
        choice="card",
    ),
    Option(
        name="device",
        topic=Topic.CARD,
        field="device",
        read=values.one_of(_DEVICES),
        help="Where to measure. cpu counts the memory of the process.",
        default="auto",
        choices=_DEVICES,
        of_search=True,
    ),
    Option(
        name="probe",
        topic=Topic.CARD,
        field="probe",
        read=values.one_of(_PROBES),
        help="auto measures where the device is here or at --address, and predicts elsewhere.",
        default="auto",
        choices=_PROBES,
        of_search=True,
    ),
)
