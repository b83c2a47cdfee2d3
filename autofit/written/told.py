"""Keys and values that a tool's file is given, and sentences on what the tool has no key for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from autofit.written.setting import Setting
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.knobs.compile import script_line
from autofit_workers.spec.knobs.optimizer import NAMED

# Parts of a setting besides its knobs, of which a format says that its file has them.
BATCH_SIZE, PARALLEL = "batch_size", "parallel"


class Removed:
    """Value that stands for a key to be taken out of a file."""


REMOVED = Removed()


@dataclass(slots=True, kw_only=True)
class Told:
    """Content for a tool's file, as a format collects it.

    Attributes:
        values: values by key, as the tool nests them; `REMOVED` for a key that must not be there.
        said: names of the knobs that the file has a key for, and of `BATCH_SIZE` and `PARALLEL`.
        notes: sentences for the user, besides those on what is not said.
    """

    values: dict[str, Any] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def say(self, *names: str, **values: Any) -> None:
        """Adds values by key, which state the knobs (or other parts of a setting) with the given names."""
        self.said.update(names)
        self.values.update(values)


def unsaid(setting: Setting, said: Collection[str]) -> Iterator[str]:
    """Yields what of a setting is still to be set in the script, as no file has a key for it.

    Knobs with their default values need no key.

    Args:
        setting: the whole setting.
        said: names of the knobs, and of `BATCH_SIZE` and `PARALLEL`, that the files have.
    """
    knobs, usual = setting.knobs, Knobs()
    if BATCH_SIZE not in said:
        yield f"batch_size={setting.loaded} of the data loader"
    if "grad_accumulation" not in said and setting.accumulation > 1:
        yield f"an optimizer step after {setting.accumulation} batches"
    if PARALLEL not in said and setting.parallel:
        yield f"{setting.parallel}, for which the setting was found"
    for name in KNOBS:
        value = getattr(knobs, name)
        if name in said or name in _ACCUMULATES or value in (getattr(usual, name), _ON_THE_CPU):
            continue
        lines = _lines(name, setting)
        by = f", by {'; '.join(lines)}" if lines else ""
        yield f"--{name.replace('_', '-')} {value}{by}"


_ACCUMULATES = ("grad_accumulation", "global_batch")  # a setting has the number that follows from either
_ON_THE_CPU = "onednn"  # PyTorch's only algorithm of convolutions there


def _lines(name: str, setting: Setting) -> tuple[str, ...]:
    """Lines of Python that set a knob in a script; empty where more than a few lines do it."""
    value = getattr(setting.knobs, name)
    if (line := _LINES.get(name)) is not None:
        return (line.format(value),)
    if name == "compile":
        return (script_line(value),)
    if name == "optimizer":
        return (NAMED[value].path,)
    if name == "conv_algo":
        return conv.find(value).lines_on(setting.device_kind)
    knob = KNOBS[name]
    of_script = () if knob.script_lines is None else knob.script_lines(value)
    of_model = () if knob.model_lines is None else knob.model_lines(value, setting.knobs)
    of_type = (_HALF,) if value == "bf16" and name == "precision" else ()
    return tuple(line.partition("  #")[0] for line in (*of_type, *of_script, *of_model))


# Lines for knobs whose own descriptions have none, as they take part in more than a line of a script.
_LINES = {
    "checkpointing": 'autofit.checkpoint_blocks(model, "{}")',
    "memory_format": "model = model.to(memory_format=torch.{})",
    "clip_grad_norm": "torch.nn.utils.clip_grad_norm_(model.parameters(), {})",
}
_HALF = "model = model.to(dtype=torch.bfloat16)"
