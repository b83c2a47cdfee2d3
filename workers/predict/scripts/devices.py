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

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for given in (*args[1:2], (kwargs or {}).get("device")):
            is_named = isinstance(given, str) and given.startswith("cuda:")
            device = torch.device(given) if is_named else given
            if isinstance(device, torch.device) and device.type == "cuda" and device.index:
                self._refuse(several_gpus(self._name, device.index))
        return super().__torch_function__(func, types, args, kwargs)
