"""Slurm: options of sbatch, as lines of a batch script.

`--gres=gpu:TYPE:N` asks for N GPUs of a type on each node, `--constraint` for nodes with one of several
features (sbatch's manual). A type is what gres.conf says, or with `AutoDetect=nvml` the driver's name of the
card in lower case with underscores in the place of spaces (`gpu_common_underscorify_tolower` of
`src/interfaces/gpu/gpu_common.c`, which `gpu_nvml.c` calls). Features are the site's own.
"""

from __future__ import annotations

from autofit.hardware.gpus import Gpu
from autofit.requests.asked import Asked
from autofit.requests.formats.format import AsksBy, RequestFormat, Written
from autofit.requests.text import commented

_MOST_FEATURES = 8  # names in one constraint


def type_of(gpu: Gpu) -> str:
    """Type of a card in Slurm, where it detects types itself."""
    return gpu.name.lower().replace(" ", "_")


def _write(asked: Asked) -> Written | None:
    cards = asked.by_name(lambda gpu: (type_of(gpu),))
    if not cards:
        return None
    first, row = next(iter(cards.items()))
    per_node = row.num_gpus // asked.num_nodes
    options = {"--nodes": str(asked.num_nodes)} if asked.num_nodes > 1 else {}
    options["--gres"] = f"gpu:{first}:{per_node}"
    text = "".join(f"#SBATCH {name}={value}\n" for name, value in options.items())
    others = [name for name, each in cards.items() if each.num_gpus == row.num_gpus]
    values: dict[str, object] = dict(options)
    if len(others) > 1:
        either = {"--gres": f"gpu:{per_node}", "--constraint": "|".join(others[:_MOST_FEATURES])}
        values["any_of"] = either
        text += commented(
            [
                "Or any of these cards, where nodes have their types as features, in the place of --gres:",
                *(f'SBATCH {name}="{value}"' for name, value in either.items()),
            ]
        )
    return Written(
        text=text,
        values=values,
        cards=tuple(cards.values()),
        notes=(
            "the types are those of AutoDetect=nvml; `sinfo -o %G` lists the cluster's own, which gres.conf "
            "may name otherwise",
        ),
    )


FORMAT = RequestFormat(name="slurm", scheduler="Slurm", asks_by=AsksBy.CARD, write=_write)
