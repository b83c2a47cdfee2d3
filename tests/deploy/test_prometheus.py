from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRAPE = Path(__file__).parents[2] / "deploy" / "prometheus" / "scrape.yml"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_accepts_the_scrape_job() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", SCRAPE], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
