"""Prometheus' own tools on its configuration and rules, and the live server on every expression."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.expressions import Expression, all_expressions
from tests.deploy.places import DEPLOY, RULES, documents
from tests.each import check_each
from tests.prometheus import Prometheus, needs_prometheus

FOLDER = DEPLOY / "prometheus"
EXPRESSIONS = all_expressions()

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


@needs_promtool
@pytest.mark.parametrize(
    "command",
    ["check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"],
)
def test_promtool_accepts(command: str) -> None:
    checked = subprocess.run(
        ["promtool", *command.split()], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "SUCCESS" in checked.stdout


def alerts() -> dict[str, dict[str, Any]]:
    (rules,) = documents(RULES)
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}


def test_every_alert_says_what_is_wrong_what_that_means_and_what_to_do() -> None:
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}, name


def test_every_alert_is_seen_to_fire_and_not_to_fire() -> None:
    (tests,) = documents(FOLDER / "rules_test.yml")
    cases = [case for test in tests["tests"] for case in test.get("alert_rule_test", [])]
    firing = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert firing == silent == alerts().keys()


def test_what_is_recorded_is_named_by_level_metric_operation_and_used() -> None:
    (rules,) = documents(RULES)
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    expressions = " ".join(expression.text for expression in EXPRESSIONS)
    for name in recorded:
        assert re.fullmatch(r"job_instance(_\w+)?:autofit_\w+:\w+", name)
        assert name in expressions


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that evaluates our rules and scrapes nothing."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"rule_files": [str(RULES)]}), encoding="utf-8")
    with Prometheus(config, folder=folder) as server:
        yield server


@pytest.mark.process
@needs_prometheus
def test_the_live_server_takes_every_expression(prometheus: Prometheus) -> None:
    def is_taken(expression: Expression) -> None:
        prometheus.query(expression.as_sent())
        sent = urllib.parse.urlencode({"query": expression.as_sent()})
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/format_query?{sent}", timeout=30) as response:
            assert json.load(response)["status"] == "success"

    check_each(EXPRESSIONS, is_taken, name=lambda expression: expression.where)


@pytest.mark.process
@needs_prometheus
def test_the_live_server_refuses_a_misspelt_expression(prometheus: Prometheus) -> None:
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.query("sum by (job (up)")


@pytest.mark.process
@needs_prometheus
def test_the_live_server_has_taken_the_rules(prometheus: Prometheus) -> None:
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules", timeout=30) as response:
        groups = json.load(response)["data"]["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} >= alerts().keys()
    assert not [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]
