"""What tells one answer from another: the versions it was made with, and the digest of what decided it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from typing import Any

from autofit.self_test import told_version


def versions() -> dict[str, str]:
    """What an answer is made with."""
    return dict(_versions())


@functools.cache
def _versions() -> Mapping[str, str]:
    distributions = ("autofit", "ray", "optuna")
    return {
        "python": platform.python_version(),
        "torch": told_version(importlib.metadata.version("torch")),
        **{name: importlib.metadata.version(name) for name in distributions},
    }


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A digest that is equal for equal settings (JSON's types), in whatever order they are."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
