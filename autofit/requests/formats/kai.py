"""KAI Scheduler: a part of a GPU's memory, in MiB.

The annotations `gpu-memory` and `gpu-fraction-num-devices`, and the label of the queue, are those of
NVIDIA/KAI-Scheduler (`docs/gpu-sharing/`, `pkg/common/constants/constants.go`); a pod that has the first may
not ask for whole GPUs too (`gpu_request_validator.go`).
"""

from __future__ import annotations

from autofit.requests.asked import Asked
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.requests.formats.pod import newer_than, of_each_node, pod
from autofit.requests.formats.sharing import cards_with, notes_on_cards
from autofit.requests.text import as_yaml

_MIB = 1024**2


def _write(asked: Asked) -> Written:
    known = asked.on_known_generations()
    is_limited = known.least_major > asked.least_major
    asked = known
    asked_bytes = asked.shared_bytes()
    mib = -(-asked_bytes // _MIB)
    annotations = {"gpu-memory": str(mib)}
    if asked.gpus_per_node > 1:
        annotations["gpu-fraction-num-devices"] = str(asked.gpus_per_node)
    values = pod(
        annotations=annotations,
        labels={"kai.scheduler/queue": "default-queue"},
        scheduler="kai-scheduler",
        affinity=[newer_than(asked.least_major)] if is_limited else None,
    )
    return Written(
        text=as_yaml(values),
        values=values,
        cards=cards_with(asked, asked_bytes),
        memory_bytes=mib * _MIB,
        notes=(
            "GPU sharing has to be enabled; the queue is your cluster's",
            *of_each_node(asked.num_nodes),
            *notes_on_cards(asked, asked_bytes),
        ),
    )


FORMAT = RequestFormat(
    name="kai", scheduler="KAI Scheduler", asks_by=AsksBy.MEMORY, write=_write, only_cuda=True
)
