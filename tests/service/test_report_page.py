"""The report as a browser shows it: its answer, all figures, no complaints; at every width and scheme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import autofit
from autofit.hardware.card import card_named
from autofit.predict.predictor import local_predictor
from autofit.questions.what_if import what_if
from autofit.report.gather import report_on_estimate, report_on_search
from autofit.report.html.page import Page, render
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer
from autofit_workers.spec.knobs import Knobs
from tests.browser import Browser, browsing, needs_browser
from tests.conformance.dispatcher import ROOT

pytestmark = [pytest.mark.process, needs_browser]

SMALL = f"{ROOT / 'tests' / 'autofit' / 'tiny_workloads.py'}:small"
_MARKS = ".scatterlayer .trace, .barlayer .trace, g.slice"

_WITHIN_THEIR_SECTIONS = """
return [...document.querySelectorAll("section")].every((section) => {
  const box = section.getBoundingClientRect();
  return [...section.querySelectorAll(".main-svg")].every((figure) => {
    const drawn = figure.getBoundingClientRect();
    return drawn.bottom <= box.bottom + 1 && drawn.right <= box.right + 1;
  });
});
"""


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Page]]:
    """What the pages show, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        predictor, card = local_predictor(refer(SMALL)), card_named("t4")
        result = autofit.tune(SMALL, gpu_mem="6G")
        settings = TuneSettings(model=SMALL, gpu_mem_bytes=6 * 1024**3)
        levers = what_if(predictor, Knobs(conv_algo="im2col"), card, 4)
        yield {
            "tune": report_on_search(result, settings, predictor),
            "estimate": report_on_estimate(levers.base, predictor, card, what_if=levers),
        }


@pytest.fixture(scope="module")
def pages(contents: dict[str, Page], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of the pages."""
    folder = tmp_path_factory.mktemp("pages")
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(render(content), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in contents}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("name", ["tune", "estimate"])
def test_the_answer_is_read_from_the_page_and_every_figure_is_drawn(
    name: str, browser: Browser, pages: dict[str, str], contents: dict[str, Page]
):
    said = browser.text(pages[name], once_it_says="Assumed")
    for sentence in contents[name].answer:
        assert sentence in said
    browser.await_true(
        "return [...document.querySelectorAll('.figure')].every(figure => figure.querySelector"
        f"('{_MARKS}') !== null)"
    )
    num_figures = browser.run("return document.querySelectorAll('.figure').length")
    assert num_figures == {"tune": 4, "estimate": 7}[name]
    browser.require_quiet()


@pytest.mark.parametrize(
    "looks",
    [[(1400, "light"), (1400, "dark")], [(500, "dark"), (500, "light")]],
    ids=["wide", "narrow"],
)
@pytest.mark.parametrize("name", ["tune", "estimate"])
def test_the_page_keeps_within_the_window_and_to_the_system_s_colours(
    name: str, looks: list[tuple[int, str]], *, browser: Browser, pages: dict[str, str], tmp_path: Path
):
    """From the first look on, and where the system changes its colours while the page is open."""
    width, scheme = looks[0]
    browser.show(width=width, scheme=scheme)
    browser.text(pages[name], once_it_says="Assumed")
    for width, scheme in looks:
        browser.show(width=width, scheme=scheme)
        browser.await_true("return document.documentElement.scrollWidth <= window.innerWidth")
        browser.await_true(f"return document.documentElement.dataset.theme === '{scheme}'")
        browser.await_true(_WITHIN_THEIR_SECTIONS)
        browser.save(tmp_path / f"{name}-{width}-{scheme}.png")


def test_the_switch_goes_against_the_system(browser: Browser, pages: dict[str, str]):
    browser.show(width=1400, scheme="light")
    browser.text(pages["tune"], once_it_says="Assumed")
    before = browser.run("return getComputedStyle(document.querySelector('.xtick text')).fill")
    browser.click("#theme")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    after = browser.run("return getComputedStyle(document.querySelector('.xtick text')).fill")
    assert before != after
    browser.require_quiet()
