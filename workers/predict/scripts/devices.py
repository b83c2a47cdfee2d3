"""Which GPU a script asks for: there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from workers.predict.fake.devices import NamedDevices
from workers.predict.scripts.answers import several_gpus


class ScriptDevices(NamedDevices):
    """Ends a script that asks for a second GPU.

    Args:
        name: of the script.
        refuse: ends the script for a reason.
    """

    def __init__(self, name: str, refuse: Callable[[Exception], NoReturn]) -> None:
        super().__init__()
        self._name = name
        self._refuse = refuse

    def _chosen(self, device: Any) -> Any:
        chosen = super()._chosen(device)
        if isinstance(chosen, torch.device) and chosen.type == "cuda" and chosen.index:
            self._refuse(several_gpus(self._name, chosen.index))
        return chosen
