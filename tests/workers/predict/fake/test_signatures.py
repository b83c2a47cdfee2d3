"""What stands in for a function of `torch.cuda` is called as that one is, by position and by name."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch

from autofit_workers.predict.fake import fake_gpu, streams

_FOLDER = Path(torch.cuda.__file__).parent


def _parameters() -> dict[str, list[str]]:
    """The names of the parameters of PyTorch's own public functions, from its source."""
    found = {}
    for file in ("__init__.py", "memory.py", "random.py"):
        for node in ast.parse((_FOLDER / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                given = node.args
                found[node.name] = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return found


@pytest.mark.parametrize("by_name", [True, False])
def test_stand_ins_take_what_pytorchs_functions_take(by_name: bool):
    fake_gpu.install()
    replaced = []
    for name, parameters in _parameters().items():
        function = getattr(torch.cuda, name)
        if not function.__module__.startswith("autofit_workers."):
            continue
        replaced.append(name)
        signature = inspect.signature(function)
        if by_name:
            signature.bind(**dict.fromkeys(parameters))
        else:
            signature.bind(*parameters)
    assert {"current_stream", "synchronize", "get_device_properties"} <= set(replaced)


def test_streams_and_events_are_made_as_pytorchs_are():
    streams.Stream(device=None, priority=0)
    torch.cuda.Event(enable_timing=True, blocking=False, interprocess=False).record(stream=None)
