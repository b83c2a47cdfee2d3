"""`autofit doctor`: a line for each check, and an exit code for scripts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class StandIn:
    """What a check looks like to the command."""

    name: str
    status: str
    detail: str
    next_step: str = ""


OK = StandIn("PyTorch", "ok", "2.13.0")
WARNING = StandIn("NVIDIA driver", "warning", "none", "nothing to do: sizes are predicted")
FAILED = StandIn("state directory", "failed", "not writable", "set AUTOFIT_STATE_DIR")


def test_each_check_is_told_with_its_next_step(autofit):
    finished = autofit("doctor", examine=lambda: (OK, WARNING))
    lines = [" ".join(line.split()) for line in finished.out.splitlines()]
    assert lines == [
        "✓ ok PyTorch 2.13.0",
        "! warning NVIDIA driver none",
        "→ nothing to do: sizes are predicted",
    ]


@pytest.mark.parametrize(("checks", "code"), [((OK,), 0), ((OK, WARNING), 0), ((OK, FAILED, WARNING), 5)])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_only_a_failed_check_makes_the_command_fail(autofit, checks, code, form):
    assert autofit("doctor", *form, examine=lambda: checks).code == code


def test_the_document_has_the_checks(autofit):
    assert autofit("doctor", "--json", examine=lambda: (FAILED,)).document == {
        "schema": "autofit.doctor/1",
        "checks": [
            {
                "name": "state directory",
                "status": "failed",
                "detail": "not writable",
                "next_step": "set AUTOFIT_STATE_DIR",
            }
        ],
    }
