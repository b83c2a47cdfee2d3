"""Overrides for a script with Hydra, an override a line.

Hydra knows no keys of its own: those of a new file are the ones of Lightning's template for Hydra
(`data.batch_size`, `trainer.precision`). A file that has `data.loader.batch_size=…` keeps that key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autofit.written.files.lines import LinesFile
from autofit.written.formats.format import Format
from autofit.written.formats.lightning import trainer_options
from autofit.written.setting import Setting
from autofit.written.told import Told
from autofit_workers.spec.knobs.compile import mode_of
from autofit_workers.spec.knobs.optimizer import NAMED


def _tell(setting: Setting, found: Mapping[str, Any]) -> Told:
    told, knobs = Told(), setting.knobs
    options = {f"trainer.{key}": _value(value) for key, value in trainer_options(told, setting).items()}
    told.say("batch_size", **{"data.batch_size": setting.loaded})
    told.values |= {**options, "model.compile": _value(bool(knobs.compile))}
    if mode_of(knobs.compile) is None:  # the template has no key for a mode
        told.said.add("compile")
    if knobs.optimizer is not None and not NAMED[knobs.optimizer].tells_hidden_weights:
        named = NAMED[knobs.optimizer]
        told.say("optimizer", **{"model.optimizer._target_": named.path})
        told.values |= {f"model.optimizer.{key}": _value(value) for key, value in named.options.items()}
    if not found:
        told.notes.append(
            "the keys are those of Lightning's template for Hydra: where your configuration has others, name "
            "them in FILE once, and they stay"
        )
    return told


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


FORMAT = Format(
    name="hydra",
    tool="Hydra's overrides",
    use="python train.py $(cat FILE)",
    file=LinesFile(
        form=re.compile(r"(?P<before>\s*[+~]*)(?P<key>[A-Za-z_][\w.@/:-]*)=(?P<value>.*)"),
        example="override, such as data.batch_size=32",
        by_last_part=True,
    ),
    tell=_tell,
)
