"""Values merged into mappings, in place."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from autofit.written.told import REMOVED


def merge(into: MutableMapping[str, Any], values: Mapping[str, Any]) -> None:
    """Changes and adds values in a mapping, whose other keys and their order stay.

    Args:
        values: values by key; a mapping is merged into one that is there, `REMOVED` takes its key out.
    """
    for key, value in values.items():
        found = into.get(key)
        if value is REMOVED:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            if not isinstance(found, MutableMapping):
                found = into[key] = {}
            merge(found, value)
        elif found != value or type(found) is not type(value):
            into[key] = value


def require_own(found: object, signs: frozenset[str], what: str) -> Mapping[str, Any]:
    """Content of a file as a mapping, if it is of the tool that is expected; an empty file is anybody's.

    Args:
        found: content of the file.
        signs: keys that files of the tool have, of which one suffices.
        what: name of such a file, for the message.

    Raises:
        ValueError: the content is no mapping, or has none of the keys.
    """
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ValueError(f"is no file of {what}: it holds no keys with values")  # noqa: TRY004
    if found and not signs.intersection(found):
        some = ", ".join(sorted(signs)[:3])
        raise ValueError(f"is no file of {what}: it has none of its keys ({some}, …)")
    return found
