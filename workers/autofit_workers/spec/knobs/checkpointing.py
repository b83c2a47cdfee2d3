"""The knob `checkpointing`: which activations are computed again in backward instead of kept."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Cost, Knob, Part, number_after, one_of

CHECKPOINTINGS = ("none", "blocks", "blocks-reentrant", "selective")
CHECKPOINTINGS_WITH_NUMBER = {"every": "blocks", "selective": "percent"}
CHECKPOINTING_NAMES = (*CHECKPOINTINGS, *(f"{kind}:N" for kind in CHECKPOINTINGS_WITH_NUMBER))
_ALL_RECOMPUTED = 3
_LEFT = {"none": 1.0, "selective": 0.5}  # share of activations that is kept; other kinds keep block inputs
_INPUTS_LEFT = 0.2


def split_checkpointing(name: str) -> tuple[str, int | None]:
    """Splits a value of the option `--checkpointing`, such as `every:4` or `selective:50`, at its number.

    Returns:
        The kind of activation checkpointing, and the number; None if there is no number.

    Raises:
        ValueError: there is no such kind, or its number is missing or wrong.
    """
    kind, colon, digits = name.partition(":")
    unit = CHECKPOINTINGS_WITH_NUMBER.get(kind)
    if unit is None or (not colon and kind in CHECKPOINTINGS):
        return one_of(CHECKPOINTING_NAMES)(name), None
    if unit == "percent":
        return kind, number_after(name, digits, unit, example=50, maximum=100)
    return kind, number_after(name, digits, unit, example=4)


def _read(value: object) -> str:
    kind, number = split_checkpointing(str(value))
    return kind if number is None else f"{kind}:{number}"


def _recomputed(value: str) -> float:
    """Sort key of a kind of checkpointing by step time: the more of forward is recomputed, the higher.

    It ranges from 0, if nothing is recomputed, to 3.

    Args:
        value: a value of the option `--checkpointing`.
    """
    kind, number = split_checkpointing(value)
    if kind == "none":
        return 0
    return 1 + (100 - (number or 100)) / 100 if kind == "selective" else _ALL_RECOMPUTED


def _leaves(value: str) -> dict[Part, float]:
    return {Part.ACTIVATIONS: _LEFT.get(split_checkpointing(value)[0], _INPUTS_LEFT)}


KNOB = Knob(
    name="checkpointing",
    default="none",
    read=_read,
    help="Which activations are computed again in backward. blocks keeps only the inputs of each repeated "
    "block, blocks-reentrant by PyTorch's older way (use_reentrant=True); every:N takes N blocks in a row as "
    "one; selective also keeps the outputs of matrix products, convolutions and attention, selective:N at "
    "most N percent of their bytes.",
    values=CHECKPOINTING_NAMES,
    examples=("none", "blocks", "blocks-reentrant", "every:2", "selective", "selective:50"),
    is_searchable=True,
    is_common=True,
    of_training=True,
    levers=("none", "blocks", "every:2", "selective"),
    leaves=_leaves,
    words={"none": "no checkpointing"},
    phrase="checkpointing {}",
    cost=Cost(rank=2, of=lambda value, _capability: _recomputed(value)),
)
