"""The page of `autofit ui` in a browser: 50 moves, each as estimate says; at every width and scheme."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from autofit.hardware.card import card_named
from autofit.predict.predictor import local_predictor
from autofit.settings.workloads import refer
from autofit_workers.spec.knobs import Knobs
from tests.browser import Browser, browsing, needs_browser
from tests.conformance.dispatcher import ROOT
from tests.daemons import Daemon

pytestmark = [pytest.mark.process, needs_browser]

SMALL = f"{ROOT / 'tests' / 'autofit' / 'tiny_workloads.py'}:small"
_MOVE = """
const [selector, value] = arguments;
const control = document.querySelector(selector);
control.value = value;
control.dispatchEvent(new Event("input", {bubbles: true}));
control.dispatchEvent(new Event("change", {bubbles: true}));
"""
_CLOCK = """
window.answered = 0;
new MutationObserver(() => { window.answered = performance.now(); }).observe(
  document.getElementById("what"), {childList: true}
);
"""
_SETTLED = "return document.getElementById('answer').getAttribute('aria-busy') === 'false'"
_SAYS = "return document.getElementById('what').textContent.endsWith('at batch {}')"
_NO_NAME = """
return [...document.querySelectorAll("#form input, #form select, button")].filter(
  (control) => !(control.labels?.length || control.getAttribute("aria-label") || control.textContent)
).map((control) => control.id);
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ui")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(folder / "state"))
        command = [sys.executable, "-m", "autofit.cli", "ui", SMALL, "--gpu", "t4"]
        with Daemon(command, log=folder / "ui.log") as daemon:
            yield daemon.await_log("http://")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def open_page(browser: Browser, address: str) -> None:
    browser.text("about:blank", once_it_says="")
    browser.text(address, once_it_says="Take it along")
    browser.await_true(_SETTLED)


def test_fifty_moves_of_the_slider_show_what_estimate_says(browser: Browser, address: str, tmp_path: Path):
    browser.show(width=1400, scheme="light")
    open_page(browser, address)
    browser.run(_CLOCK)
    predictor = local_predictor(refer(SMALL))
    random, milliseconds = Random(53), []
    for position in [random.randint(1, 200) for _ in range(50)]:
        began = browser.run("return performance.now()")
        browser.run_with(_MOVE, "#batch", str(position))
        size = int(browser.run("return document.getElementById('batch_size').value"))
        browser.await_true(_SAYS.format(size))
        milliseconds.append(browser.run("return answered") - began)
        estimate = predictor.estimate(Knobs(), card_named("t4"), size)
        facts = browser.run("return [...document.querySelectorAll('#facts dd[title]')].map(one => one.title)")
        sizes = estimate.whole_peak_bytes, estimate.peak_allocated_bytes, estimate.device_peak_bytes
        assert facts[:3] == [f"{num_bytes} bytes" for num_bytes in sizes]
    (tmp_path / "milliseconds.json").write_text(json.dumps(sorted(milliseconds)))
    browser.require_quiet()


def test_another_precision_is_traced_and_a_wrong_adapter_is_a_sentence_that_goes_again(
    browser: Browser, address: str
):
    open_page(browser, address)
    browser.run_with(_MOVE, "#precision", "bf16")
    browser.await_true("return document.getElementById('exports').innerText.includes('--precision bf16')")
    browser.run_with(_MOVE, "#adapter", "nonsense:=")
    browser.await_true("return !document.getElementById('error').hidden")
    said = browser.run("return document.getElementById('error').textContent")
    assert said
    assert "Traceback" not in said
    browser.run_with(_MOVE, "#adapter", "")
    browser.await_true("return document.getElementById('error').hidden")
    browser.await_true(_SETTLED)
    assert browser.run("return document.getElementById('live').textContent").startswith("fits on t4")
    assert "precision=bf16" in browser.run("return location.hash")


def test_a_card_is_chosen_by_its_name_and_controls_have_names(browser: Browser, address: str):
    open_page(browser, address)
    browser.await_true("return document.querySelectorAll('#cards button').length > 100")
    browser.run("document.querySelector('#cards button').click()")
    browser.await_true(
        "return document.getElementById('verdict').textContent.endsWith(document.getElementById('gpu').value)"
    )
    assert browser.run(_NO_NAME) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_keeps_within_the_window_and_to_the_system_s_colours(
    width: int, scheme: str, *, browser: Browser, address: str, tmp_path: Path
):
    browser.show(width=width, scheme=scheme)
    open_page(browser, address)
    browser.await_true("return document.querySelector('#curve .scatterlayer .trace') !== null")
    browser.await_true("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.await_true(f"return document.documentElement.dataset.theme === '{scheme}'")
    browser.save(tmp_path / f"ui-{width}-{scheme}.png")
    browser.require_quiet()
