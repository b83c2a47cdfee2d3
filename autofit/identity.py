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


def versions(followed: str | None = None) -> dict[str, str]:
    """Versions of Python, PyTorch, autofit, Ray and Optuna that are installed, by lower-case name.

    Args:
        followed: release of PyTorch that is predicted by `--torch`, which stands as `torch_followed`; None
            for the installed one.
    """
    return {**_versions(), **({} if followed is None else {"torch_followed": followed})}


@functools.cache
def _versions() -> Mapping[str, str]:
    return {
        "python": platform.python_version(),
        "torch": told_version(importlib.metadata.version("torch")),
        "autofit": importlib.metadata.version(DISTRIBUTION),
        **{name: importlib.metadata.version(name) for name in ("ray", "optuna")},
    }


def fingerprint(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings as hexadecimal text; the order of keys does not matter.

    Args:
        settings: values that JSON can hold, by name.
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def told_version(version: str) -> str:
    """PyTorch version as answers show it: marked as unverified if autofit was not tested with the version.

    Args:
        version: version as PyTorch states it, such as `2.6.0+cu124`.
    """
    return version if is_supported(version) else f"{version} (predictions unverified)"
