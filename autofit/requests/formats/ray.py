"""Ray: GPUs by accelerator type, for one task or actor, or for each bundle of a placement group.

`num_gpus` and `accelerator_type` are options of `ray.remote`; in a bundle a type is asked for as a thousandth
of the resource `accelerator_type:NAME` (`ray/util/accelerators`, `ray/_private/ray_constants.py`,
`RESOURCE_CONSTRAINT_PREFIX`).
"""

from __future__ import annotations

from typing import Any

from autofit.errors import either
from autofit.requests.asked import Asked
from autofit.requests.formats.format import AsksBy, RequestFormat, Written

_OF_A_TYPE = 0.001


def _write(asked: Asked) -> Written | None:
    cards = asked.by_name(lambda gpu: gpu.accelerator_types)
    if not cards:
        return None
    name, row = next(iter(cards.items()))
    strategy = "PACK" if asked.num_nodes > 1 else "STRICT_PACK"
    bundle = {"GPU": 1, f"accelerator_type:{name}": _OF_A_TYPE}
    values: dict[str, Any] = {"bundles": [bundle] * row.num_gpus, "strategy": strategy}
    if row.num_gpus == 1:
        values |= {"options": {"num_gpus": 1, "accelerator_type": name}}
        text = (
            f'import ray\n\n\n@ray.remote(num_gpus=1, accelerator_type="{name}")\ndef train() -> None: ...\n'
        )
    else:
        shown = ", ".join(f'"{key}": {value}' for key, value in bundle.items())
        text = (
            "from ray.util.placement_group import placement_group\n\n"
            f'group = placement_group([{{{shown}}}] * {row.num_gpus}, strategy="{strategy}")\n'
        )
    others = [each for each, other in cards.items() if each != name and other.num_gpus == row.num_gpus]
    notes = ["Ray names a node's cards itself; `ray.cluster_resources()` lists the names"]
    notes += [f"types that fit too: {either(others)}"] if others else []
    return Written(text=text, values=values, cards=tuple(cards.values()), notes=tuple(notes))


FORMAT = RequestFormat(name="ray", scheduler="Ray", asks_by=AsksBy.CARD, write=_write)
