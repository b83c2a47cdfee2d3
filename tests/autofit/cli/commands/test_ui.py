"""`autofit ui` as a process: started, asked, told to end; and what cannot begin."""

from __future__ import annotations

import http.client
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conformance.dispatcher import ROOT
from tests.daemons import Daemon

pytestmark = pytest.mark.process

SMALL = f"{ROOT / 'tests' / 'autofit' / 'tiny_workloads.py'}:small"


class Page(Daemon):
    """A running `autofit ui` on a free port.

    Args:
        folder: takes its log.
        options: of the command.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__([sys.executable, "-m", "autofit.cli", "ui", *options], log=folder / "ui.log")
        self.address = self.await_log("http://")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            headers = {"Content-Type": "application/json"}
            text = None if body is None else json.dumps(body)
            connection.request(method, f"{parts.path}{path}", body=text, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path, SMALL, "--gpu", "t4") as started:
        yield started


def test_it_answers_moves_as_the_commands_do_and_ends_on_ctrl_c(page: Page, autofit: Any) -> None:
    status, text = page.request("GET", "")
    assert (status, SMALL in text) == (200, True)
    move = {"tab": "a", "number": 1, "model": SMALL, "gpu": "t4", "batch_size": 64}
    status, text = page.request("POST", "answer", move)
    parts = {name: part for line in text.splitlines() for name, part in json.loads(line).items()}
    assert (status, {"answer", "cards", "curve"} <= parts.keys()) == (200, True)
    options = ("--model", SMALL, "--batch-size", "64", "--json")
    found = autofit("estimate", *options, "--gpu", "t4").document
    assert {**found, "trace_digest": ""} == {
        **parts["answer"]["estimate"],
        "trace_digest": "",
        "method": "simulate",
    }
    cards = {card["gpu"]: card for card in autofit("cards", *options).document["cards"]}
    for card in parts["cards"]["cards"]:
        for field in ("verdict", "interval", "usable_bytes", "largest_batch", "need"):
            assert card[field] == cards[card["gpu"]][field]
    page.process.send_signal(signal.SIGINT)
    assert page.process.wait(timeout=60) == 0
    assert page.log.splitlines() == [page.address]


def test_sigterm_ends_it_though_a_trace_is_being_made(page: Page) -> None:
    parts = urlsplit(page.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    body = json.dumps({"tab": "a", "number": 1, "model": "gpt2", "batch_size": 8})
    connection.request("POST", f"{parts.path}answer", body, {"Content-Type": "application/json"})
    assert b"progress" in connection.getresponse().readline()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):  # further ones change nothing
        page.process.send_signal(number)
    assert page.process.wait(timeout=20) == 0
    assert page.log.splitlines() == [page.address]
    connection.close()


def test_what_cannot_begin_is_a_sentence_and_an_exit_code(autofit: Any) -> None:
    finished = autofit("ui", "--host", "0.0.0.0")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("error: --host 0.0.0.0 is not a loopback address")
    assert autofit("ui", "--gpu", "zz").code == autofit("ui", "--batch-size", "0").code == 2
