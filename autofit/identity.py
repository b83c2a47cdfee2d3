"""What tells one answer from another: the versions it was made with, and the digest of what decided it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from typing import Any

from autofit_workers.installation import DISTRIBUTION
from autofit_workers.spec.versions import is_supported


def versions() -> dict[str, str]:
    """What an answer is made with."""
    return dict(_versions())


@functools.cache
def _versions() -> Mapping[str, str]:
    return {
        "python": platform.python_version(),
        "torch": told_version(importlib.metadata.version("torch")),
        "autofit": importlib.metadata.version(DISTRIBUTION),
        **{name: importlib.metadata.version(name) for name in ("ray", "optuna")},
    }


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A digest that is equal for equal settings (JSON's types), in whatever order they are."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def told_version(version: str) -> str:
    """A version of PyTorch as answers name it: one that was not tried says so."""
    return version if is_supported(version) else f"{version} (predictions unverified)"
