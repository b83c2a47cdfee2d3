"""The knob `adapter`: small weights that are trained in place of the model's own, by the library peft.

This module reads the syntax only; peft itself knows the methods and their options, where it is installed
(`autofit_workers.apply.adapter`).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from autofit_workers.spec.documents import DocumentError, parse_json, read_file
from autofit_workers.spec.knobs.knob import Knob, Part, or_none

Option = bool | int | float | str | list[Any] | dict[str, Any]

# Methods, by the names of their papers, that peft offers as options of another method.
VARIANTS: dict[str, tuple[str, dict[str, Option]]] = {
    "dora": ("lora", {"use_dora": True}),
    "rslora": ("lora", {"use_rslora": True}),
}
_RANKS = ("r", "rank")
_FILE = ".json"
_MOST_BYTES = 100_000
# Fields that peft writes besides a method's options; autofit takes them from the model that is adapted.
OF_FILES = (
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "peft_version",
    "revision",
    "task_type",
)
_WORDS = {"true": True, "false": False}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_EXAMPLE = "lora:r=16,targets=q_proj,v_proj"


def split_adapter(text: str) -> tuple[str, dict[str, Option]]:
    """Splits an adapter's text, such as `lora:r=16,targets=q_proj,v_proj`, into peft's method and options.

    A piece without `=`, such as `v_proj`, belongs to the value before it, which becomes a list. The text may
    also be a JSON object, with `peft_type` for the method, as peft saves it.

    Raises:
        ValueError: `text` has neither form, gives an option twice, or names a rank below 1.
    """
    method, options = _of_json(text) if text.lstrip().startswith("{") else _of_pieces(text)
    for key in _RANKS:
        rank = options.get(key, 1)
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"{key}={rank} of {text!r} is a rank: give a whole number of 1 or more")
    return method.lower().replace("-", "_"), options


def _of_json(text: str) -> tuple[str, dict[str, Option]]:
    try:
        document = parse_json(text)
    except DocumentError as error:
        raise ValueError(f"an adapter's configuration {error}") from None
    method = document.pop("peft_type", None) if isinstance(document, dict) else None
    if not isinstance(method, str) or not _NAME.fullmatch(method):
        raise ValueError("an adapter's configuration names no method: it has no peft_type")
    return method, {
        key: value for key, value in document.items() if value is not None and key not in OF_FILES
    }


def _of_pieces(text: str) -> tuple[str, dict[str, Option]]:
    """Method and options of an adapter written as `METHOD:KEY=VALUE,…`."""
    method, _, told = text.strip().partition(":")
    if not _NAME.fullmatch(method):
        raise ValueError(f"{text!r} names no method: write METHOD:KEY=VALUE,…, as in {_EXAMPLE}")
    pieces: dict[str, list[str]] = {}
    last: list[str] | None = None
    for piece in told.split(",") if told else ():
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals and last is not None:
            key, value = "", key
        if not value or (equals and not _NAME.fullmatch(key)) or (not equals and last is None):
            raise ValueError(f"{piece!r} of {text!r} is no KEY=VALUE, as in {_EXAMPLE}")
        if key in pieces:
            raise ValueError(f"{text!r} says {key} twice: leave one of them out")
        if key:
            last = pieces[key] = []
        assert last is not None
        last.append(value)
    return method, {key: _option(values) for key, values in pieces.items()}


def _option(values: list[str]) -> Option:
    return _word(values[0]) if len(values) == 1 else [_word(value) for value in values]


def _word(text: str) -> bool | int | float | str:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _NUMBER.fullmatch(text):
        return text
    number = float(text)
    return int(number) if math.isfinite(number) and text.lstrip("+-").isdecimal() else number


def _read(value: Any) -> str:
    method, options = split_adapter(str(value))
    if any(isinstance(option, dict) for option in options.values()):
        return json.dumps({"peft_type": method.upper(), **options}, sort_keys=True)
    told = ",".join(f"{key}={_written(option)}" for key, option in options.items())
    return f"{method}:{told}" if told else method


def _from_user(value: Any) -> Any:
    """Text of the JSON file that a user names; any other value is returned as it is.

    With the text in its place, a trial on another machine does not need the file.

    Args:
        value: text of an adapter, or path of a `.json` file that peft saved.

    Raises:
        ValueError: the file cannot be read.
    """
    path = str(value)
    if not path.endswith(_FILE):
        return value
    try:
        return read_file(path, _MOST_BYTES).decode()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} cannot be read (it is no text)") from None


def _written(option: Option) -> str:
    if isinstance(option, bool):
        return str(option).lower()
    return ",".join(map(_written, option)) if isinstance(option, list) else str(option)


# Adapter that `--what-if` tries: LoRA beside every linear layer, at the rank of peft's own examples.
USUAL = "lora:r=16,targets=all-linear"
_TRAINED = 0.02  # share of the weights that adapters of usual ranks train

KNOB = Knob(
    name="adapter",
    default=None,
    read=or_none(_read),
    from_user=_from_user,
    help="Train small weights beside the model's own, which are frozen, by a method of the library peft with "
    "its own options: lora:r=16,alpha=32,targets=all-linear. dora and rslora are lora's; every other name "
    "and option is peft's, and so is a file adapter_config.json.",
    metavar="METHOD[:KEY=VALUE,…]",
    examples=("lora:r=16", "lora:r=16,targets=all-linear", "dora:r=16", "adalora", "ia3", "vera", "oft"),
    of_training=True,
    levers=(USUAL,),
    leaves=lambda value: (
        {} if value is None else dict.fromkeys((Part.GRADIENTS, Part.STATES, Part.TEMPORARIES), _TRAINED)
    ),
    words={None: "no adapter"},
    phrase="adapter {}",
)
