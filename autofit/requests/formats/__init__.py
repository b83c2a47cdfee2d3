"""Formats of requests, a file a scheduler; to add one, write its file and give it a line here.

slurm.py           options of sbatch
kubernetes.py      a pod: whole GPUs by node labels, MIG slices
kai.py             a pod of KAI Scheduler
ray.py             options of a task, and bundles of a placement group
skypilot.py, dstack.py      YAML
runai.py           the command that submits
pod.py, sharing.py what several have in common
"""

from __future__ import annotations

from autofit.requests.formats import dstack, kai, kubernetes, ray, runai, skypilot, slurm
from autofit.requests.formats.format import RequestFormat

FORMATS: dict[str, RequestFormat] = {
    each.name: each
    for each in (
        slurm.FORMAT,
        kubernetes.FORMAT,
        kai.FORMAT,
        ray.FORMAT,
        skypilot.FORMAT,
        dstack.FORMAT,
        runai.FORMAT,
    )
}
