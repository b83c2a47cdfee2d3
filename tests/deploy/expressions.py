"""Every PromQL expression of the dashboards and rules, and what can be read off it without a parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.places import DASHBOARDS, RULES, documents

_METRIC = re.compile(r"(?<![:\w])(?:autofit|ray|DCGM)_\w+")
_SELECTOR = re.compile(r"(?<![:\w])(up|ALERTS|(?:autofit|ray|DCGM)_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"((?:[^\"\\]|\\.)*)\"")
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Expression:
    """An expression, and where it stands.

    Attributes:
        board: the dashboard it is of; None for a rule.
    """

    text: str
    where: str
    board: Path | None

    @property
    def metrics(self) -> set[str]:
        """The names of series that are neither recorded by a rule nor Prometheus' own."""
        return set(_METRIC.findall(_without_labels(self.text)))

    @property
    def selectors(self) -> list[tuple[str, dict[str, str]]]:
        """Names of series with their matchers, by label."""
        return [
            (name, dict(_MATCHER.findall(matchers or ""))) for name, matchers in _SELECTOR.findall(self.text)
        ]

    @property
    def labels(self) -> set[str]:
        """The labels that it selects or groups by."""
        grouped = {label.strip() for labels in _GROUPING.findall(self.text) for label in labels.split(",")}
        return grouped | {label for _, matchers in self.selectors for label in matchers}

    def as_sent(self) -> str:
        """The expression as Grafana sends it, with values in place of its variables."""
        values = {"__rate_interval": "1m", "__range": "6h"}
        return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found.group(1), ".*"), self.text)


def _without_labels(text: str) -> str:
    return _GROUPING.sub("", re.sub(r"\{[^}]*\}", "", text))


def load(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels that show something; rows only hold them together."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def all_expressions() -> list[Expression]:
    return [*_of_rules(), *(found for path in DASHBOARDS for found in of_board(path))]


def of_board(path: Path) -> Iterator[Expression]:
    """Those of a dashboard's panels and annotations."""
    board = load(path)
    for panel in panels(board):
        for target in panel["targets"]:
            yield Expression(target["expr"], f"{path.name}: {panel['title']}", path)
    for annotation in board["annotations"]["list"]:
        if "expr" in annotation:
            yield Expression(annotation["expr"], f"{path.name}: annotation {annotation['name']}", path)


def _of_rules() -> Iterator[Expression]:
    (rules,) = documents(RULES)
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield Expression(rule["expr"], f"rules.yml: {rule.get('alert') or rule['record']}", None)
