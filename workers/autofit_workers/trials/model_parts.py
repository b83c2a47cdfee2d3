"""Lists the parameters of a language model, in a process that builds it without allocating memory.

    request   {"workload": {…}}
    answer    {"parts": {…}} or {"error": {…}}

This module does not import torch; `autofit_workers.tracing.listing_parts` is the main program of that
process.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.process.child_process import NO_GPU, ChildProcess
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.model_parts import ModelParts
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import TrialError, WorkloadRef


class PartsFailedError(Exception):
    """A model's parameters could not be listed: building it failed, or the process that builds it died.

    Attributes:
        error: the failure, in words for a user; None if the process died or took too long.
    """

    def __init__(self, message: str, error: TrialError | None = None) -> None:
        super().__init__(message)
        self.error = error


def list_parts(workload: WorkloadRef, *, deadline_seconds: float) -> ModelParts:
    """Parameters of a model of transformers, and entries of its configuration.

    Args:
        workload: reference that names the model.
        deadline_seconds: longest time that building the model may take.

    Raises:
        PartsFailedError: there is no such model, or the process failed.
    """
    try:
        process = ChildProcess("autofit_workers.tracing.listing_parts", NO_GPU, permissions=Permissions())
    except OSError as error:
        raise PartsFailedError(f"no process could be started for the model ({error})") from error
    try:
        request = json.dumps({"workload": dataclasses.asdict(workload)})
        return _parts(parse_json(process.ask(request, time.monotonic() + deadline_seconds)))
    except TimeoutError:
        raise PartsFailedError(f"the model was not built within {deadline_seconds:g} s") from None
    except (EOFError, ValueError) as error:
        log = process.log.text().strip().splitlines()
        raise PartsFailedError(f"its process died: {log[-1] if log else 'it printed nothing'}") from error
    finally:
        process.kill()
        process.log.close()


def _parts(answer: Any) -> ModelParts:
    """Model parts, parsed from the answer of the process that built the model.

    Raises:
        ValueError: the answer is malformed.
    """
    if not isinstance(answer, dict):
        raise ValueError("it answered no object")  # noqa: TRY004 - what the process says is a value
    if "error" in answer:
        told = from_plain(TrialError, answer["error"])
        raise PartsFailedError(told.message, told)
    return from_plain(ModelParts, answer.get("parts"))
