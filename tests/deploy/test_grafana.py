"""The dashboards: what Grafana itself would show as an empty panel and no error."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.expressions import load, of_board, panels
from tests.deploy.places import DASHBOARDS, DEPLOY, documents

PROVISIONING = DEPLOY / "grafana" / "provisioning"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

every_board = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def test_the_dashboards_are_there() -> None:
    assert [path.stem for path in DASHBOARDS] == ["cluster", "job", "overview"]
    boards = [load(path) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards)
    assert len({board["title"] for board in boards}) == len(boards)


@every_board
def test_a_dashboard_is_classic_and_has_no_id_of_one_server(path: Path) -> None:
    board = load(path)
    assert board["schemaVersion"] >= 39
    assert "id" not in board
    assert "__inputs" not in board
    assert board["description"]
    assert board["refresh"]


@every_board
def test_panels_have_ids_of_their_own_and_do_not_overlap(path: Path) -> None:
    board = load(path)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@every_board
def test_a_panel_says_what_it_shows_and_in_what_unit(path: Path) -> None:
    for panel in panels(load(path)):
        assert panel["title"], panel["id"]
        assert panel["description"], panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        steps = defaults["thresholds"]["steps"]
        assert steps[0]["value"] is None, panel["title"]
        values = [step["value"] for step in steps[1:]]
        assert values == sorted(values), panel["title"]


@every_board
def test_every_query_goes_to_the_chosen_datasource_and_has_a_legend(path: Path) -> None:
    board = load(path)
    assert variables(board)["datasource"]["type"] == "datasource"
    assert variables(board)["datasource"]["query"] == "prometheus"
    for panel in panels(board):
        assert panel["datasource"] == DATASOURCE, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == DATASOURCE, panel["title"]
            assert target["legendFormat"], panel["title"]
    for variable in variables(board).values():
        if variable["type"] == "query":
            assert variable["datasource"] == DATASOURCE, variable["name"]


@every_board
def test_every_series_is_chosen_by_job_and_instance(path: Path) -> None:
    known = variables(load(path)).keys()
    for expression in of_board(path):
        assert expression.selectors, expression
        for name, matchers in expression.selectors:
            assert "job" in matchers, (expression.where, name)
            assert matchers.get("instance", "").startswith("$"), (expression.where, name)
        used = set(re.findall(r"\$\{?([a-z]\w*)", expression.text))
        assert used <= known, expression.where


@every_board
def test_every_variable_is_used(path: Path) -> None:
    board = load(path)
    texts = [expression.text for expression in of_board(path)]
    texts += [variable["definition"] for variable in variables(board).values() if "definition" in variable]
    for name in variables(board).keys() - {"datasource"}:
        assert any(f"${name}" in text for text in texts), name


@every_board
def test_rates_are_over_what_the_scrape_interval_allows(path: Path) -> None:
    for expression in of_board(path):
        for window in re.findall(r"\[([^]]*)]", expression.text):
            assert window in ("$__rate_interval", "$__range"), expression.where
        for function in re.findall(r"\b(rate|increase)\(([^)]*)\)", expression.text):
            assert "[$__rate_interval]" in function[1], expression.where


@every_board
def test_a_legend_names_labels_that_its_query_keeps(path: Path) -> None:
    for panel in panels(load(path)):
        for target in panel["targets"]:
            grouping = re.search(r"\bby \(([^)]*)\)", target["expr"])
            if grouping is None:
                continue
            kept = {label.strip() for label in grouping.group(1).split(",")}
            assert set(re.findall(r"\{\{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


@every_board
def test_alerts_are_drawn_into_the_graphs(path: Path) -> None:
    drawn = [each for each in load(path)["annotations"]["list"] if not each.get("builtIn")]
    assert [each["datasource"] for each in drawn] == [DATASOURCE]
    assert 'ALERTS{alertstate="firing"' in drawn[0]["expr"]


def test_grafana_is_told_where_prometheus_and_the_dashboards_are() -> None:
    (sources,) = documents(PROVISIONING / "datasources" / "prometheus.yml")
    (source,) = sources["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "$PROMETHEUS_URL", True)
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    (dashboards,) = documents(PROVISIONING / "dashboards" / "autofit.yml")
    (provider,) = dashboards["providers"]
    assert (provider["type"], Path(provider["options"]["path"]).is_absolute()) == ("file", True)
