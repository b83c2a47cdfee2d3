"""Makes JSON's types of comparisons, with what follows from their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autofit.locks.growth import Comparison, LineChange

# Properties that documents have too, by class.
PROPERTIES: Mapping[type, tuple[str, ...]] = {
    Comparison: ("difference_bytes",),
    LineChange: ("difference_bytes",),
}


def plain(value: Any) -> Any:
    """Value as JSON's types: dataclasses as dictionaries, with the properties that documents have too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (*(each.name for each in dataclasses.fields(value)), *PROPERTIES.get(type(value), ()))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value
