"""Where the files for operators lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    with path.open(encoding="utf-8") as file:
        return list(yaml.load_all(file, Loader=yaml.CSafeLoader))  # KubeRay's definitions are large
