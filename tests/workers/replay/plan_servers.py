"""Processes of libcudnn that a test has started."""

from __future__ import annotations

from contextlib import suppress

import psutil


def servers() -> list[psutil.Process]:
    """Child processes of this process that run libcudnn."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # also of one that is dead and not yet reaped
            if "autofit_workers.replay.plans.plan_server" in child.cmdline():
                found.append(child)
    return found
