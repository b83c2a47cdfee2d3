"""The knob `batch_layout`: how the sequences of a batch lie in it: full, padded, packed, padding-free.

The knob needs a `make_batch` with a keyword `layout`, as that of transformers' language models has
(`autofit_workers.workload.libraries.token_batches`).
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit_workers.spec.knobs.knob import Knob, number_after, one_of

LAYOUTS = ("full", "padding-free")
LAYOUT_NAMES = ("full", "padded:PERCENT", "packed:N", "padding-free", "padding-free:N")
_MOST_PERCENT = 99
_LEAST_PACKED = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the tokens of a batch of texts.

    Attributes:
        percent_padded: percentage of each sample's tokens that are padding, at its end.
        num_packed: number of sequences that follow each other in a sample.
        is_flattened: whether all samples follow each other in one row, without padding.
    """

    percent_padded: int = 0
    num_packed: int = 1
    is_flattened: bool = False


def split_layout(name: str) -> Layout:
    """Reads a value of the option `--batch-layout`: `full`, `padded:25`, `packed:4` or `padding-free`.

    Raises:
        ValueError: there is no such layout, or its number is missing or wrong.
    """
    kind, colon, digits = name.partition(":")
    if kind == "padded":
        return Layout(number_after(name, digits, "percent", example=25, maximum=_MOST_PERCENT))
    if kind == "packed" or (kind == "padding-free" and colon):
        least = _LEAST_PACKED if kind == "packed" else 1
        number = number_after(name, digits, "sequences a sample", example=4, minimum=least)
        return Layout(num_packed=number, is_flattened=kind != "packed")
    if name not in LAYOUTS:
        one_of(LAYOUT_NAMES)(name)
    return Layout(is_flattened=name == "padding-free")


def _read(value: object) -> str:
    layout = split_layout(str(value))
    if layout.percent_padded:
        return f"padded:{layout.percent_padded}"
    packed = f":{layout.num_packed}" if layout.num_packed > 1 else ""
    return f"padding-free{packed}" if layout.is_flattened else f"packed{packed}" if packed else "full"


KNOB = Knob(
    name="batch_layout",
    default="full",
    read=_read,
    help="How sequences lie in a batch of a language model of transformers, or of a workload whose "
    "make_batch takes a keyword layout. full: each fills its sample; padded:PERCENT: so much of a sample is "
    "padding, on the right, and masked; packed:N: N sequences a sample, with position_ids that restart; "
    "padding-free: all samples follow each other in one row (padding-free:N: N sequences each).",
    values=LAYOUT_NAMES,
    examples=("full", "padded:25", "packed:4", "padding-free", "padding-free:4"),
    is_searchable=True,
    words={"full": "samples without padding"},
    phrase="{} batches",
)
