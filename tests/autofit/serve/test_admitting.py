"""Admission that goes on whatever goes away; what it admits is in test_jobs.py, with a real cluster."""

from __future__ import annotations

from autofit.serve.admitting import Admitting
from tests.daemons import free_ports


def test_a_cluster_that_does_not_answer_is_said_once_and_asked_again() -> None:
    (port,) = free_ports(1)
    said: list[str] = []
    admitting = Admitting(None, address=f"http://127.0.0.1:{port}", log=said.append)
    for _ in range(3):
        admitting.run()
    admitting.close()
    (line,) = said
    assert line.startswith(f"no job can be started for now: nobody answers at http://127.0.0.1:{port}")
