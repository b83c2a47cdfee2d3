"""Main program of the process that holds libcudnn: receives convolutions and returns plans, as JSON lines.

libcudnn has a process of its own because it takes a gigabyte, prints to stderr what it misses of a driver,
and would take its caller down with it if it crashed.
"""

from __future__ import annotations

import json
import os
from typing import Any

from autofit_workers.process.messages import received
from autofit_workers.replay.plans.cudnn import Cudnn, CudnnError, Descriptor
from autofit_workers.spec.trace import convolution_from_dict


def main(requests_fd: int, answers_fd: int) -> None:
    """Answers requests for convolution plans, one JSON line each, until an empty line comes.

    A request, with the card as cuDNN's JSON, is `{"device": "…", "calls": [{…}, …]}`; its answer
    `{"version": 92700, "plans": [[[engine, workspace_bytes, uses_tensor_cores, is_deterministic], …], …]}`
    or `{"error": "…"}`.

    Args:
        requests_fd, answers_fd: file descriptors that requests are read from and answers written to.
    """
    requests = received(requests_fd, answers_fd)
    server = _Server()
    with os.fdopen(answers_fd, "w", encoding="utf-8") as answers:
        while request := requests.get():
            try:
                answer = server.answer(json.loads(request))
            except CudnnError as error:
                answer = {"error": str(error)}
            answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
            answers.flush()


class _Server:
    """Holder of the loaded libcudnn and of the cards that it was asked about."""

    def __init__(self) -> None:
        self._cudnn: Cudnn | None = None
        self._devices: dict[str, Descriptor] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer to a request: cuDNN's version, and the plans of each convolution."""
        if self._cudnn is None:
            self._cudnn = Cudnn.load()
        properties: str = request["device"]
        if properties not in self._devices:
            self._devices[properties] = self._cudnn.device(properties)
        device = self._devices[properties]
        plans = [self._cudnn.plans(convolution_from_dict(call), device) for call in request["calls"]]
        rows = [
            [[p.engine, p.workspace_bytes, p.uses_tensor_cores, p.is_deterministic] for p in each]
            for each in plans
        ]
        return {"version": self._cudnn.version, "plans": rows}
