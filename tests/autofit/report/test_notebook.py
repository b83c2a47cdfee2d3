"""Answers as a notebook shows them: self-contained, without scripts, whatever names are in them."""

from __future__ import annotations

import dataclasses
import html.parser

import pytest

from autofit.explain.views.filters import Filters
from autofit.explain.views.ops import operator_view
from autofit.report.html.still import still_figure
from autofit.report.notebook import html_of
from tests.autofit.cli.conftest import answer, nothing_fits, predicted_estimate
from tests.autofit.explain.toy import PROFILE

SECRET = "postgresql://me:hunter2@127.0.0.1/db"
HOSTILE = "<script>alert(1)</script>\"'&"


class Checked(html.parser.HTMLParser):
    """Reads a page; its tags have to be closed, and none may run or load anything."""

    _EMPTY = ("path", "circle", "br", "meta")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "iframe", "img", "link", "object"), tag
        for name, _value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("src", "href", "id"), name
        if tag not in self._EMPTY or tag == "path":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize(
    "shown",
    [
        answer(workload=HOSTILE, notes=(HOSTILE,)),
        nothing_fits(workload=HOSTILE),
        dataclasses.replace(predicted_estimate(), workload=HOSTILE),
    ],
)
def test_names_are_text_and_nothing_runs_or_loads(shown):
    page = shown._repr_html_()
    assert HOSTILE in "".join(Checked(page).words)
    assert "<script" not in page
    assert "http" not in page
    assert len(page) < 60_000


def test_secrets_are_not_shown():
    shown = answer(workload=SECRET, notes=(SECRET,))
    assert "hunter2" not in shown._repr_html_()


def test_an_answer_has_its_sentence_and_its_table():
    page = answer()._repr_html_()
    assert "davenet fits at batch 118" in page
    assert page.count("<tr") > 3
    assert "color-scheme: dark" in page
    assert "currentColor" in page


def test_a_profile_and_its_views_are_shown():
    profile = PROFILE
    view = operator_view(profile, Filters())
    for shown in (profile, view):
        read = Checked(shown._repr_html_())
        assert read.words
    assert "<svg" in profile._repr_html_()
    assert view.rows[0].name.removeprefix("aten.") in "".join(Checked(view._repr_html_()).words)


def test_what_is_no_answer_has_no_html():
    with pytest.raises(TypeError, match="int"):
        html_of(3)


def test_lines_and_areas_are_drawn_with_their_names_as_text():
    line = {
        "type": "scatter",
        "name": HOSTILE,
        "mode": "lines",
        "x": [1, 2],
        "y": [1, 3],
        "line": {"color": "var:ink"},
    }
    areas = [
        {**line, "stackgroup": "a", "name": name, "line": {"color": "#0072B2"}} for name in ("low", "high")
    ]
    figure = {"data": [*areas, line], "layout": {"xaxis": {"title": {"text": "batch"}}}}
    picture = still_figure(figure, HOSTILE)
    assert picture is not None
    read = Checked(picture)
    assert {"low", "high", HOSTILE, "batch"} <= set(read.words)
    assert picture.count('Z"') == 2
    assert still_figure({"data": [{"type": "bar", "x": [1], "y": [1]}], "layout": {}}, "") is None
    assert still_figure({"data": [], "layout": {}}, "") is None
