"""dstack: GPUs by their memory, and by name where the user named cards.

`resources.gpu` has `vendor`, `name`, `memory`, `count` and `compute_capability`, `nodes` is of a task
(`dstack/_internal/core/models/resources.py` and `configurations.py` of 0.22.5). Memory is that which a card
is sold with, in units of 1024³ bytes; names are those of `gpuhunt`, which dstack finds offers with.
"""

from __future__ import annotations

from typing import Any

from autofit.hardware.gpus import Gpu, catalogue
from autofit.requests.asked import Asked
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.requests.text import as_yaml

# `KNOWN_NVIDIA_GPUS` of `gpuhunt/_internal/constraints.py`; several memory sizes share a name there.
NAMES = {
    "p100": "P100",
    "v100-16g": "V100",
    "v100-32g": "V100",
    "t4": "T4",
    "rtx-2060": "RTX2060",
    "rtx-2060-12g": "RTX2060",
    "rtx-2070": "RTX2070",
    "rtx-2070-super": "RTX2070SUPER",
    "rtx-2080": "RTX2080",
    "rtx-2080-super": "RTX2080SUPER",
    "rtx-2080-ti": "RTX2080Ti",
    "quadro-rtx-6000": "RTX6000",
    "a100-40g": "A100",
    "a100-80g": "A100",
    "a10": "A10",
    "a10g": "A10G",
    "a16": "A16",
    "a40": "A40",
    "rtx-a4000": "A4000",
    "rtx-a4500": "A4500",
    "rtx-a5000": "A5000",
    "rtx-a6000": "A6000",
    "rtx-3050-6g": "RTX3050",
    "rtx-3050": "RTX3050",
    "rtx-3060": "RTX3060",
    "rtx-3060-ti": "RTX3060Ti",
    "rtx-3070": "RTX3070",
    "rtx-3070-ti": "RTX3070Ti",
    "rtx-3080": "RTX3080",
    "rtx-3080-ti": "RTX3080Ti",
    "rtx-3090": "RTX3090",
    "rtx-3090-ti": "RTX3090Ti",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "rtx-2000-ada": "RTX2000Ada",
    "rtx-4000-ada": "RTX4000Ada",
    "rtx-6000-ada": "RTX6000Ada",
    "rtx-4060": "RTX4060",
    "rtx-4060-ti": "RTX4060Ti",
    "rtx-4060-ti-16g": "RTX4060Ti",
    "rtx-4070": "RTX4070",
    "rtx-4070-super": "RTX4070SUPER",
    "rtx-4070-ti": "RTX4070Ti",
    "rtx-4070-ti-super": "RTX4070TiSUPER",
    "rtx-4080": "RTX4080",
    "rtx-4080-super": "RTX4080SUPER",
    "rtx-4090": "RTX4090",
    "h100-80g": "H100",
    "h100-nvl-94g": "H100NVL",
    "gh200-96g": "GH200",
    "h200": "H200",
    "b200": "B200",
    "gb200": "GB200",
    "rtx-5060": "RTX5060",
    "rtx-5060-ti": "RTX5060Ti",
    "rtx-5060-ti-16g": "RTX5060Ti",
    "rtx-5070": "RTX5070",
    "rtx-5070-ti": "RTX5070Ti",
    "rtx-5080": "RTX5080",
    "rtx-5090": "RTX5090",
    "rtx-pro-4500": "RTXPRO4500",
    "rtx-pro-6000": "RTXPRO6000",
}


def _sold_gb(gpu: Gpu) -> int:
    return gpu.sold_gb


def _write(asked: Asked) -> Written | None:
    if asked.names_cards:
        asked = asked.among(lambda gpu: gpu.key in NAMES)
    least = asked.least_card(_sold_gb, _sold_gb) if asked.fitting else None
    if least is None:
        return None
    admitted = tuple(row for row in asked.of_one_number if catalogue()[row.gpu].sold_gb >= least.gpu.sold_gb)
    gpu: dict[str, Any] = {"vendor": "nvidia"}
    if asked.names_cards:
        gpu["name"] = list(dict.fromkeys(NAMES[row.gpu] for row in admitted))
    gpu |= {"memory": f"{least.gpu.sold_gb}GB..", "count": asked.gpus_per_node}
    if least.major is not None:
        gpu["compute_capability"] = f"{least.major}.0"
    nodes = {"nodes": asked.num_nodes} if asked.num_nodes > 1 else {}
    values = {**nodes, "resources": {"gpu": gpu}}
    return Written(
        text=as_yaml(values),
        values=values,
        cards=admitted,
        memory_bytes=least.gpu.sold_gb * 1024**3,
        notes=("these lines belong into a dstack configuration, such as a task's",),
    )


FORMAT = RequestFormat(
    name="dstack", scheduler="dstack", asks_by=AsksBy.CARD_MEMORY, write=_write, only_cuda=True
)
