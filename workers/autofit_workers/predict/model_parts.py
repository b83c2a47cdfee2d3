"""What a language model is made of: asked of a process that builds it without memory.

    request   {"workload": {…}}
    answer    {"parts": {…}} or {"error": {…}}

No torch here; `autofit_workers.predict.listing_parts` is that process.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import Any

from autofit_workers.documents import parse_json
from autofit_workers.plain import from_plain
from autofit_workers.process.boundary.entering import Permissions
from autofit_workers.process.child_process import ChildProcess
from autofit_workers.process.isolate import NO_GPU
from autofit_workers.protocol import TrialError, WorkloadRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the model; one that several modules share stands once.

    Attributes:
        name: in the model, `model.layers.0.self_attn.q_proj.weight`.
        owner: the class of the module that has it, `Linear`.
    """

    name: str
    owner: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What transformers makes of a configuration.

    Attributes:
        model_type: transformers' name of the architecture, `llama`.
        model_class: the class of the model with its head, `LlamaForCausalLM`.
        dtype: of the checkpoint, as its configuration says; None where it says nothing.
        config: what the configuration of the text model says by the names that architectures share.
        is_multimodal: whether something beside the text model reads images or sound.
    """

    model_type: str
    model_class: str
    dtype: str | None
    parameters: tuple[Parameter, ...]
    config: dict[str, Any] = field(default_factory=dict)
    is_multimodal: bool = False


class PartsFailedError(Exception):
    """The model could not be built, or the process that was to do so died.

    Attributes:
        error: what it was, in words for a user; None where the process died or took too long.
    """

    def __init__(self, message: str, error: TrialError | None = None) -> None:
        super().__init__(message)
        self.error = error


def list_parts(workload: WorkloadRef, *, deadline_seconds: float) -> ModelParts:
    """The parameters of a model of transformers, and what its configuration says.

    Raises:
        PartsFailedError: there is no such model, or the process failed.
    """
    try:
        process = ChildProcess("autofit_workers.predict.listing_parts", NO_GPU, permissions=Permissions())
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
    """What the process answered; raises `ValueError` where that makes no sense."""
    if not isinstance(answer, dict):
        raise ValueError("it answered no object")  # noqa: TRY004 - what the process says is a value
    if "error" in answer:
        told = from_plain(TrialError, answer["error"])
        raise PartsFailedError(told.message, told)
    return from_plain(ModelParts, answer.get("parts"))
