"""The knob `compile`: whether `torch.compile` compiles the model, and in which of its modes."""

from __future__ import annotations

from typing import Any

from autofit_workers.spec.knobs.knob import Knob, switch

# Of `torch._inductor.list_mode_options`. The first and the last record CUDA graphs.
MODES = ("reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
_PREFIX = "mode="
_VALUES = ("true", "false", *(f"{_PREFIX}{mode}" for mode in MODES))


def _read(value: Any) -> bool | str:
    """Reads whether to compile, or `mode=NAME`, also without `mode=`; `mode=default` is True."""
    name = value.strip().lower().removeprefix(_PREFIX) if isinstance(value, str) else ""
    if name in MODES:
        return _PREFIX + name
    if name == "default":
        return True
    try:
        return switch(value)
    except ValueError:
        raise ValueError(f"{value!r} is not one of {', '.join(_VALUES)}") from None


def mode_of(value: bool | str) -> str | None:
    """Name of the mode of `torch.compile` that a value of the knob asks for; None for its default."""
    return value.removeprefix(_PREFIX) if isinstance(value, str) else None


def script_line(value: bool | str) -> str:
    """Line of Python that compiles a model as a value of the knob says, other than False."""
    mode = mode_of(value)
    return "model = torch.compile(model)" if mode is None else f'model = torch.compile(model, mode="{mode}")'


KNOB = Knob(
    name="compile",
    default=False,
    read=_read,
    help="Compile the model with torch.compile, by its defaults or in a mode.",
    values=_VALUES,
    metavar="[mode=MODE]",
    is_searchable=True,
    may_stand_alone=True,
    words={
        True: "compiled",
        False: "not compiled",
        **{f"{_PREFIX}{mode}": f"compiled in mode {mode}" for mode in MODES},
    },
)
