"""Kubernetes: whole GPUs by the memory of a node's, and MIG slices by their profile.

`nvidia.com/gpu.memory` is in MiB and what NVML reports, as are `gpu.product`, with hyphens in the place of
spaces, and `gpu.compute.major` (NVIDIA/k8s-device-plugin, `docs/gpu-feature-discovery/README.md`,
`internal/lm/resource.go`). NVML reports no less than CUDA, and no more than a card is sold with. With the MIG
strategy `mixed`, a slice is the resource `nvidia.com/mig-PROFILE` (`docs/README.md` there). `Gt` of a node
affinity compares whole numbers, and admits what is greater (`NodeSelectorRequirement`).
"""

from __future__ import annotations

import re
from typing import Any

from autofit.hardware.gpus import Gpu, catalogue
from autofit.questions.card_fits import CardFit
from autofit.requests.asked import Asked, LeastCard
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.requests.formats.pod import LABEL, newer_than, of_each_node, pod
from autofit.requests.text import as_yaml, commented

_MIB = 1024**2
_DROPPED = re.compile(r"[^A-Za-z0-9\-_. ]")


def product_of(gpu: Gpu) -> str:
    """Value of `nvidia.com/gpu.product` on a node with the card."""
    return "-".join(_DROPPED.sub("", gpu.name).split())


def _least_mib(gpu: Gpu) -> int:
    return gpu.total_bytes // _MIB


def _most_mib(gpu: Gpu) -> int:
    return max(gpu.sold_gb * 1024, _least_mib(gpu))


def _write(asked: Asked) -> Written | None:
    whole = asked.among(lambda gpu: not gpu.is_mig_slice)
    on_cards = _of_whole_cards(whole) if whole.fitting else None
    on_slice = _of_a_slice(asked)
    if on_slice is None or on_cards is None:
        return on_slice or on_cards
    if _memory(on_slice) <= _memory(on_cards):
        first, second, why = on_slice, on_cards, "Where there are no MIG slices:"
    else:
        first, second, why = on_cards, on_slice, "Where there are MIG slices, of the strategy `mixed`:"
    return Written(
        text=first.text + commented(["", why, *second.text.splitlines()]),
        values={**first.values, "or": second.values},
        cards=(*first.cards, *second.cards),
        memory_bytes=first.memory_bytes,
        notes=on_cards.notes,
    )


def _memory(written: Written) -> int:
    assert written.memory_bytes is not None
    return written.memory_bytes


def _of_a_slice(asked: Asked) -> Written | None:
    """Request for one MIG slice, all of whose profile fit; None where none does."""
    profiles: dict[str, list[CardFit]] = {}
    for row in asked.rows:
        if catalogue()[row.gpu].is_mig_slice and row.num_gpus == 1:
            profiles.setdefault(row.gpu.partition("-mig-")[2], []).append(row)
    fitting = {row.gpu for row in asked.fitting if row.num_gpus == 1}
    for row in asked.fitting:
        profile = row.gpu.partition("-mig-")[2]
        of_profile = profiles.get(profile, [])
        if of_profile and all(each.gpu in fitting for each in of_profile):
            values = pod(limits={f"nvidia.com/mig-{profile}": "1"})
            smallest = min(each.total_bytes for each in of_profile)
            return Written(
                text=as_yaml(values), values=values, cards=tuple(of_profile), memory_bytes=smallest
            )
    return None


def _of_whole_cards(asked: Asked) -> Written | None:
    least = asked.least_card(_least_mib, _most_mib)
    if least is None:
        return None
    expressions = _expressions(asked, least)
    values = pod(limits={LABEL: str(asked.gpus_per_node)}, affinity=expressions)
    admitted = tuple(
        row for row in asked.of_one_number if _least_mib(catalogue()[row.gpu]) >= _least_mib(least.gpu)
    )
    return Written(
        text=as_yaml(values),
        values=values,
        cards=admitted,
        memory_bytes=least.gpu.total_bytes,
        notes=("GPU feature discovery writes the labels of nodes", *of_each_node(asked.num_nodes)),
    )


def _expressions(asked: Asked, least: LeastCard) -> list[dict[str, Any]]:
    above = {"key": f"{LABEL}.memory", "operator": "Gt", "values": [str(_least_mib(least.gpu) - 1)]}
    expressions: list[dict[str, Any]] = [above]
    if least.major is not None:
        expressions.append(newer_than(least.major))
    if asked.names_cards:
        products = list(dict.fromkeys(product_of(catalogue()[row.gpu]) for row in asked.of_one_number))
        expressions.append({"key": f"{LABEL}.product", "operator": "In", "values": products})
    return expressions


FORMAT = RequestFormat(
    name="kubernetes",
    scheduler="Kubernetes",
    asks_by=AsksBy.CARD_MEMORY,
    write=_write,
    only_cuda=True,
    gives_slices=True,
)
