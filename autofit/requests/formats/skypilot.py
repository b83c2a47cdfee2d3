"""SkyPilot: a choice of accelerators, of which it takes the cheapest that it gets.

`resources`, `any_of`, `accelerators` and `max_hourly_cost` are keys of its YAML (`sky/utils/schemas.py` of
0.14.1); the cost is that of an instance. Accelerators have the names of `sky show-gpus -a` (documentation,
compute/gpus) and of RunPod's in `sky/catalog/data_fetchers/fetch_runpod.py`, each of one memory size.
"""

from __future__ import annotations

from typing import Any

from autofit.requests.asked import Asked, keys_in_table
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.requests.text import as_yaml

NAMES = {
    "p100": "P100",
    "v100-16g": "V100",
    "v100-32g": "V100-32GB",
    "t4": "T4",
    "a100-40g": "A100",
    "a100-80g": "A100-80GB",
    "a10": "A10",
    "a10g": "A10G",
    "a40": "A40",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "gh200-96g": "GH200",
    "h100-80g": "H100",
    "h200": "H200",
    "b200": "B200",
    "mi300x": "MI300X",
    "rtx-3070": "RTX3070",
    "rtx-3080": "RTX3080",
    "rtx-3080-ti": "RTX3080-Ti",
    "rtx-3090": "RTX3090",
    "rtx-3090-ti": "RTX3090-Ti",
    "rtx-4080": "RTX4080",
    "rtx-4080-super": "RTX4080-SUPER",
    "rtx-4090": "RTX4090",
    "rtx-5080": "RTX5080",
    "rtx-5090": "RTX5090",
    "rtx-2000-ada": "RTX2000-Ada",
    "rtx-4000-ada": "RTX4000-Ada",
    "rtx-5000-ada": "RTX5000-Ada",
    "rtx-6000-ada": "RTX6000-Ada",
    "rtx-a4000": "RTXA4000",
    "rtx-a4500": "RTXA4500",
    "rtx-a5000": "RTXA5000",
    "rtx-a6000": "RTXA6000",
}


def _write(asked: Asked) -> Written | None:
    cards = asked.by_name(keys_in_table(NAMES))
    if not cards:
        return None
    choice: list[dict[str, Any]] = []
    for name, row in cards.items():
        per_node = row.num_gpus // asked.num_nodes
        entry: dict[str, Any] = {"accelerators": f"{name}:{per_node}"}
        if row.price is not None:
            entry["max_hourly_cost"] = round(row.price * per_node, 6)
        choice.append(entry)
    nodes = {"num_nodes": asked.num_nodes} if asked.num_nodes > 1 else {}
    values = {**nodes, "resources": {"any_of": choice}}
    is_priced = any(row.price is not None for row in cards.values())
    return Written(
        text=as_yaml(values),
        values=values,
        cards=tuple(cards.values()),
        notes=("max_hourly_cost is that of an instance with its CPUs, from --prices",) if is_priced else (),
    )


FORMAT = RequestFormat(name="skypilot", scheduler="SkyPilot", asks_by=AsksBy.CARD, write=_write)
