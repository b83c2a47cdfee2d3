"""Private names of PyTorch that are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PrivateName:
    """Private attribute of a module or class of PyTorch, looked up when it is used."""

    owner: Any
    name: str

    def get(self) -> Any:
        """Object that the private name refers to now, which may be a replacement."""
        return getattr(self.owner, self.name)

    def replace(self, value: Any) -> None:
        """Makes the private name refer to another object."""
        setattr(self.owner, self.name, value)
