"""The fake devices that are on, the innermost last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autofit_workers.tracing.fake.fake_device import FakeDeviceMode

MODES: list[FakeDeviceMode] = []
