"""Identity of an answer: the versions it was made with, and the digest of the settings that decided it."""

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
    """Versions of Python, PyTorch, autofit, Ray and Optuna that an answer is made with."""
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
    """Digest that is equal for equal settings (JSON's types), whatever their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def told_version(version: str) -> str:
    """Version of PyTorch as answers name it, marked where autofit was not tried with it."""
    return version if is_supported(version) else f"{version} (predictions unverified)"
