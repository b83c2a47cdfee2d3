"""The series that dashboards and rules ask for are ones that somebody exports."""

from __future__ import annotations

import re
from pathlib import Path

import ray
from prometheus_client import CollectorRegistry

from autofit.serve.metrics import Metrics
from autofit.serve.watch import StorageWatch
from autofit.webhook.answering import WebhookMetrics
from autofit.webhook.kept_locks import KeptLocks
from tests.deploy.expressions import all_expressions
from tests.deploy.places import DEPLOY, documents

# What Prometheus adds to every series that it scrapes; `le` is a histogram's.
OF_A_SCRAPE = {"job", "instance", "le"}
# NVIDIA's exporter, default-counters.csv.
OF_DCGM = {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS"}

EXPRESSIONS = all_expressions()


class _NothingToRead:
    def read(self) -> None:
        pass


def exported() -> dict[str, set[str]]:
    """The names of the series of `autofit serve`, with its webhook, each with its labels."""
    registry = CollectorRegistry()
    Metrics(registry)
    WebhookMetrics(registry, KeptLocks([], log=print), certificates=None)  # type: ignore[arg-type]  # unread
    StorageWatch(_NothingToRead(), registry=registry, on_first_read=lambda: None, log=lambda _: None)
    return {
        name: set(getattr(collector, "_labelnames", ()))
        for name, collector in registry._names_to_collectors.items()
    }


def shown_by_ray() -> set[str]:
    """The names in the dashboards that Ray itself makes for Grafana."""
    folder = Path(ray.__file__).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*_panels.py"))
    return set(re.findall(r"\bray_\w+", source))


def test_every_series_that_is_asked_for_is_exported_under_that_name() -> None:
    known = exported().keys() | shown_by_ray() | OF_DCGM
    unknown = {expression.where: expression.metrics - known for expression in EXPRESSIONS}
    assert {where: names for where, names in unknown.items() if names} == {}


def test_every_label_is_one_of_the_series() -> None:
    labels = exported()
    unknown = {}
    for expression in EXPRESSIONS:
        ours = [name for name in expression.metrics if name.startswith("autofit_")]
        if ours:
            unknown[expression.where] = expression.labels - OF_A_SCRAPE.union(
                *(labels[name] for name in ours)
            )
    assert {where: names for where, names in unknown.items() if names} == {}


def test_every_series_of_autofit_is_shown_or_watched() -> None:
    asked_for = {name for expression in EXPRESSIONS for name in expression.metrics}
    families = {re.sub(r"_(created|total|bucket|count|sum)$", "", name) for name in exported()}
    shown = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in asked_for}
    assert families <= shown


def test_the_jobs_that_are_named_are_those_of_the_scrape_configuration() -> None:
    (config,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    scraped = {each["job_name"] for each in config["scrape_configs"]}
    named = {
        matchers["job"]
        for expression in EXPRESSIONS
        for _, matchers in expression.selectors
        if "job" in matchers
    }
    assert {job for job in named if not job.startswith("$")} <= scraped
