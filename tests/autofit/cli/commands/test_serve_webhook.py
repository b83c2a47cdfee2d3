"""`autofit serve --webhook` as a process: started, asked, told to end; and what cannot begin."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.autofit.webhook.certificate import write_certificate
from tests.autofit.webhook.reviews import lock_in, peak, pod_on
from tests.commands import Finished
from tests.daemons import Daemon


@pytest.mark.process
def test_it_answers_reviews_shows_their_counts_and_ends_on_sigterm(tmp_path: Path, state_dir: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    lock_in(tmp_path / "team.toml", "gpt", peak("t4", 15, 15.5))
    files = [f"--tls-cert={certificate}", f"--tls-key={key}", f"--lock={tmp_path}"]
    command = [sys.executable, "-m", "autofit.cli", "serve", "--port=0", "--webhook=0", "--deny=does-not-fit"]
    served = Daemon([*command, *files], log=tmp_path / "serve.log")
    try:
        port = int(served.await_log("metrics at http://").rpartition(":")[2].partition("/")[0])
        said = served.await_log("admission reviews at https://")
        assert said.endswith("/validate, from 1 locked configurations")
        context = ssl.create_default_context(cafile=str(certificate))
        context.check_hostname = False  # the address has no name
        reviewing = http.client.HTTPSConnection(
            "127.0.0.1", int(said.split(":")[2].partition("/")[0]), context=context, timeout=30
        )
        reviewing.request("POST", "/validate", pod_on("Tesla-T4"))
        response = json.loads(reviewing.getresponse().read())["response"]
        reviewing.close()
        assert not response["allowed"]
        assert response["status"]["message"].startswith("gpt does not fit on t4")
        scraping = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        scraping.request("GET", "/metrics")
        text = scraping.getresponse().read().decode()
        scraping.close()
        assert 'autofit_webhook_reviews_total{admitted="false",judgement="does-not-fit"} 1.0' in text
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=60) == 0
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--webhook=0"], "--webhook needs --tls-cert and --tls-key and --lock"),
        (["--lock=a.toml"], "--lock belongs to --webhook: give its port, as in --webhook 8443"),
        (["--deny=unsure"], "--deny belongs to --webhook"),
        (
            ["--webhook=0", "--tls-cert=a.crt", "--tls-key=a.key", "--lock=a.toml"],
            "a.crt and a.key are no certificate with its key (No such file or directory): give PEM files",
        ),
    ],
)
def test_what_is_missing_is_a_usage_error(
    autofit: Callable[..., Finished], options: list[str], sentence: str
) -> None:
    finished = autofit("serve", "--port=0", *options)
    assert finished.code == 2
    assert sentence in finished.err
