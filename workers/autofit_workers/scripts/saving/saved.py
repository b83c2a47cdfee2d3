"""Keeps in memory the objects that a script saves during its trial, so that it can load them again.

The file gets a token in place of the objects, by which a copied or renamed file still finds them.
Tensors without values keep their shapes; others keep their values.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_TOKEN = b"autofit saved object "
_TOKEN_BYTES = len(_TOKEN) + 16


@dataclass(frozen=True, slots=True)
class _Shape:
    """Description of a saved tensor without its values: shape, strides, dtype and device."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_parameter: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Shape:
        return cls(
            tensor.size(), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
        )  # fmt: skip

    def made(self, device: torch.device) -> Tensor:
        with torch.no_grad():
            tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)
        if self.is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=self.requires_grad)
        return tensor.requires_grad_(self.requires_grad)


class SavedObjects:
    """Objects that a script saved, kept in this process with tensors by shape only.

    Each object has a token, which stands in the saved file in place of the data.
    """

    def __init__(self) -> None:
        self._saved: list[tuple[bytes, list[_Shape | Tensor]]] = []

    def save(self, obj: Any) -> bytes:
        """Keeps an object in this process, with the shapes of its tensors in place of their values.

        Returns:
            The token of the object, to be written into its file.

        Raises:
            Exception: the object cannot be pickled.
        """
        tensors: list[_Shape | Tensor] = []

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> int | None:
                if not isinstance(value, Tensor):
                    return None
                tensors.append(_without_values(value))
                return len(tensors) - 1

        text = io.BytesIO()
        Pickler(text).dump(obj)
        self._saved.append((text.getvalue(), tensors))
        return _TOKEN + f"{len(self._saved) - 1:016d}".encode()

    def load(self, head: bytes, map_location: Any = None) -> Any:
        """Copy of an object that this process saved, found by the token at the beginning of its file.

        Args:
            head: first bytes of the file.
            map_location: device for the tensors, as in `torch.load`.

        Raises:
            LookupError: `head` is not the token of an object saved here.
        """
        if not head.startswith(_TOKEN):
            raise LookupError("not a file of this process")
        text, tensors = self._saved[int(head[len(_TOKEN) : _TOKEN_BYTES])]

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> Tensor:
                return _restored(tensors[number], map_location)

        return Unpickler(io.BytesIO(text)).load()

    def head_of(self, file: Any) -> bytes:
        """First bytes of a file, given as a path or as an open file, whose position does not change."""
        if hasattr(file, "read"):
            position = file.tell()
            head: bytes = file.read(_TOKEN_BYTES)
            file.seek(position)
            return head
        with open(file, "rb") as opened:  # noqa: PTH123 - through the script's own files
            return opened.read(_TOKEN_BYTES)


def _without_values(tensor: Tensor) -> _Shape | Tensor:
    has_values = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    if not has_values or tensor.layout is not torch.strided:
        return _Shape.of(tensor)
    copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad) if is_parameter else copy


def _restored(saved: _Shape | Tensor, map_location: Any) -> Tensor:
    device = _placed(saved.device, map_location)
    if isinstance(saved, _Shape):
        return saved.made(device)
    with torch.no_grad():
        copy = saved.clone().to(device)
    return torch.nn.Parameter(copy) if isinstance(saved, torch.nn.Parameter) else copy


def _placed(device: torch.device, map_location: Any) -> torch.device:
    if map_location is None:
        return device
    if isinstance(map_location, str | torch.device):
        return torch.device(map_location)
    if isinstance(map_location, dict):
        return torch.device(map_location.get(str(device), device))
    return torch.device("cpu")  # a function that maps a storage, which the CPU holds: `lambda s, _: s`
