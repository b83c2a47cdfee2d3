"""Formats of `--write`, a file a tool; to add one, write its file and give it a line here.

transformers.py    TrainingArguments, as JSON and as Python
lightning.py       LightningCLI
accelerate.py      `accelerate launch`
deepspeed.py       ds_config.json
torchtitan.py      overrides of its command line
axolotl.py, llama_factory.py
hydra.py           overrides, with the keys of Lightning's template
torchrun.py        its command line
environment.py     variables
hugging_face.py    what tools built on transformers have in common
"""

from __future__ import annotations

from autofit.written.formats import (
    accelerate,
    axolotl,
    deepspeed,
    environment,
    hydra,
    lightning,
    llama_factory,
    torchrun,
    torchtitan,
    transformers,
)
from autofit.written.formats.format import Format

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        transformers.AS_JSON,
        transformers.AS_PYTHON,
        lightning.FORMAT,
        accelerate.FORMAT,
        deepspeed.FORMAT,
        torchtitan.FORMAT,
        axolotl.FORMAT,
        llama_factory.FORMAT,
        hydra.FORMAT,
        torchrun.FORMAT,
        environment.FORMAT,
    )
}
