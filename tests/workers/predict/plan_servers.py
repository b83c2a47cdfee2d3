"""The processes of libcudnn that a test has, to be counted."""

from __future__ import annotations

import psutil


def servers() -> list[psutil.Process]:
    """The processes of libcudnn that this process has."""
    children = psutil.Process().children()
    return [child for child in children if "workers.predict.plan_server" in child.cmdline()]
