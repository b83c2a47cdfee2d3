"""Renders the page: its controls with the values that they offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from autofit.hardware.gpus import Gpu, catalogue
from autofit.questions.card_fits import ordered_by_memory
from autofit.units import format_bytes
from autofit_workers.spec.knobs import KNOBS
from autofit_workers.spec.workloads.builtins import BUILTINS
from autofit_workers.spec.workloads.libraries import LIBRARIES

_OWN = "the model's own"
# Knobs that have a list of values, and the name of the value that is not given.
_CHOSEN = {"precision": None, "optimizer": _OWN, "checkpointing": None, "base": "as they are made"}
_LABELS = {
    "precision": "Precision",
    "optimizer": "Optimizer",
    "checkpointing": "Activation checkpointing",
    "base": "Base weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Control with a list of values.

    Attributes:
        name: name of the option as a keyword argument.
        label: name of the control.
        values: text of each value, by the value as it is typed; that of the empty one is the default.
    """

    name: str
    label: str
    values: Mapping[str, str]


def rendered(*, model: str, gpu: Gpu | None, batch_size: int) -> str:
    """Text of the page, with its controls in their first positions.

    Args:
        model: model as it is named on the command line; empty for none.
        gpu: card that is chosen at first; None for none.
        batch_size: samples a batch at first.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    source = (resources.files("autofit.ui") / "files" / "ui.html.j2").read_text("utf-8")
    return environment.from_string(source).render(
        model=model,
        models=(*BUILTINS, *(library.example for library in LIBRARIES.values())),
        gpu="" if gpu is None else gpu.key,
        gpus=[(each.key, format_bytes(each.total_bytes)) for each in ordered_by_memory(catalogue().values())],
        batch_size=batch_size,
        choices=[_choice(name, empty) for name, empty in _CHOSEN.items()],
        adapters=KNOBS["adapter"].examples,
    )


def _choice(name: str, empty: str | None) -> Choice:
    knob = KNOBS[name]
    values = knob.values if knob.examples is None else knob.examples
    texts = {"" if value == knob.default else value: value for value in values}
    return Choice(name=name, label=_LABELS[name], values=texts if empty is None else {"": empty, **texts})
