"""How a network of the synthetic table was made, as the name of its file says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autofit_workers.spec.pythons import Self

_NAME = re.compile(
    r"input_channels:(?P<channels>\d+)_num_classes:(?P<classes>\d+)_depth:(?P<depth>\d+)"
    r"_arch:(?P<architecture>\w+?)_base_filters:(?P<filters>\d+)_batch:(?P<batch>\d+)"
    r"_input_size:(?P<size>\d+)_act:(?P<activation>\w+?)_dropout:(?P<rate>[\d.]+)"
    r"_dropout:(?P<dropout>True|False)_batchnorm:(?P<batch_norm>True|False)\.out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a network was made, as its file name says.

    Attributes:
        architecture: `dense`, `residual`, or a way in which the widths of plain layers follow.
        dropout_rate: None without dropout.
    """

    architecture: str
    input_channels: int
    image_size: int
    num_classes: int
    activation: str
    dropout_rate: float | None
    batch_norm: bool

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Reads a file name; raises `ValueError` for one that says something else."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name} does not say how the network was made")
        return cls(
            architecture=match["architecture"],
            input_channels=int(match["channels"]),
            image_size=int(match["size"]),
            num_classes=int(match["classes"]),
            activation=match["activation"],
            dropout_rate=float(match["rate"]) if match["dropout"] == "True" else None,
            batch_norm=match["batch_norm"] == "True",
        )
