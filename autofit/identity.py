"""Identity of an answer: versions of the software that made it, and a digest of its settings."""

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
    """SHA-256 of settings (of JSON types), independent of the order of keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def told_version(version: str) -> str:
    """Text of a PyTorch version in answers, marked as unverified if autofit does not support the version."""
    return version if is_supported(version) else f"{version} (predictions unverified)"
