"""Run:ai: a part of a GPU's memory for one GPU, whole GPUs for several.

`--gpu-devices-request` and `--gpu-memory-request` are options of `runai training submit`,
`gpuDevicesRequest`, `gpuRequestType` and `gpuMemoryRequest` fields of its interface, whose sizes are
quantities such as 500M or 1G (Run:ai's documentation, CLI and policy references). M is taken as 10⁶ bytes, as
in Kubernetes; where it is taken as 2²⁰, the request is larger.
"""

from __future__ import annotations

from autofit.requests.asked import Asked
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.requests.formats.pod import of_each_node
from autofit.requests.formats.sharing import cards_with, notes_on_cards

_MB = 1000**2


def _write(asked: Asked) -> Written:
    asked_bytes = asked.shared_bytes()
    mb = -(-asked_bytes // _MB)
    flags = {"--gpu-devices-request": str(asked.gpus_per_node)}
    compute: dict[str, object] = {"gpuDevicesRequest": asked.gpus_per_node}
    cards = cards_with(asked, asked_bytes)
    notes = [*of_each_node(asked.num_nodes), *notes_on_cards(asked, asked_bytes)]
    if asked.gpus_per_node == 1:
        flags["--gpu-memory-request"] = f"{mb}M"
        compute |= {"gpuRequestType": "memory", "gpuMemoryRequest": f"{mb}M"}
    else:
        notes.append(
            f"Run:ai gives a part of a card's memory for one GPU alone: these are whole ones, of which each "
            f"has to have {mb}M; choose a node pool of {', '.join(row.gpu for row in cards)}"
        )
    options = " ".join(f"{name} {value}" for name, value in flags.items())
    return Written(
        text=f"runai training submit NAME -p PROJECT -i IMAGE {options}\n",
        values={"options": flags, "spec": {"compute": compute}},
        cards=cards,
        memory_bytes=mb * _MB,
        notes=tuple(notes),
    )


FORMAT = RequestFormat(name="runai", scheduler="Run:ai", asks_by=AsksBy.MEMORY, write=_write, only_cuda=True)
