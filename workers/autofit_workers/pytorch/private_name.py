"""Private names of PyTorch that are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PrivateName:
    """Private attribute of one of PyTorch's modules or classes, which is read when it is used."""

    owner: Any
    name: str

    def get(self) -> Any:
        """Object that has the name now, a replacement included."""
        return getattr(self.owner, self.name)

    def replace(self, value: Any) -> None:
        """Gives the name to another object."""
        setattr(self.owner, self.name, value)
