"""Errors and checks for stored records that cannot be read; readers skip them and read the rest.

A storage returns the readable part of a damaged record, with the mark `DAMAGED` among its attributes. A
record of another version is whole; the code that reads it checks its version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.pythons import StrEnum

DAMAGED = "autofit_damaged"  # an attribute of trials and studies of which a part could not be read

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that reading a damaged record, or another version's, may raise."""

_LONGEST_REASON = 120


class Kind(StrEnum):
    """Kind of a stored record, such as a trial or a job."""

    JOB = "job"
    ATTEMPT = "attempt"
    STUDY = "study"
    TRIAL = "trial"
    ANSWER = "answer"


class UnreadableError(ValueError):
    """Raised for a stored record that cannot be read.

    The message completes a sentence that begins with the record's name.
    """


class NewerError(UnreadableError):
    """Raised for a stored record that was written by a newer version of autofit."""

    def __init__(self) -> None:
        super().__init__("was written by a newer version")


class OlderError(UnreadableError):
    """Raised for a stored record that was written by a version of autofit too old to be read."""

    def __init__(self) -> None:
        super().__init__("was written by a version that is too old")


class DamagedError(UnreadableError):
    """Raised for a stored record whose content is corrupt."""

    def __init__(self, what: object = "") -> None:
        reason = " ".join(str(what).split())[:_LONGEST_REASON]
        super().__init__(f"cannot be read ({reason})" if reason else "is damaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Stored record that is skipped, since it cannot be read.

    Attributes:
        name: the record's name in messages.
        why: reason why it cannot be read, as the end of a sentence that begins with the name.
    """

    kind: Kind
    name: str
    why: str

    @classmethod
    def of(cls, kind: Kind, name: str, error: Exception) -> Unreadable:
        """Builds the description of a skipped record from the `error` that reading it raised."""
        known = error if isinstance(error, UnreadableError) else DamagedError(error)
        return cls(kind=kind, name=name, why=str(known))

    def __str__(self) -> str:
        return f"{self.name} {self.why} and is not shown"


def require_whole(attributes: Mapping[str, Any]) -> None:
    """Raises `DamagedError` for a stored record that could be read only in part.

    Args:
        attributes: attributes of the record; a mark among them says that some could not be read.
    """
    if DAMAGED in attributes:
        raise DamagedError


def require_schema(record: Mapping[str, Any], newest: int) -> None:
    """Checks that a record's schema number is at most `newest`; a record without a number has the number 1.

    Raises:
        NewerError: the number is larger.
        DamagedError: the number is no positive integer.
    """
    number = record.get("schema", 1)
    if not isinstance(number, int) or number < 1:
        raise DamagedError(f"schema {number!r}")
    if number > newest:
        raise NewerError
