"""What stands in for a function of `torch.cuda` is called as that one is, by position and by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process  # which stays as it is: it has no GPU, and shows none

# Of each function that is replaced, what a call by name or by position says that its own would take.
_CODE = """
import inspect, json, torch

plain = {name: inspect.signature(each) for name, each in vars(torch.cuda).items() if inspect.isfunction(each)}
from autofit_workers.tracing.fake import fake_gpu

fake_gpu.install()
refused, replaced = [], []
for name, signature in plain.items():
    function = getattr(torch.cuda, name)
    if name.startswith("_") or not function.__module__.startswith("autofit_workers."):
        continue
    replaced.append(name)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [each.name for each in signature.parameters.values() if each.kind in kinds]
    positions = [each.name for each in signature.parameters.values() if each.kind is kinds[0]]
    for how, args, kwargs in (("name", (), dict.fromkeys(names)), ("position", positions, {})):
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            refused.append(f"{name} by {how}: {error}")
torch.cuda.Stream(device=None, priority=0)
torch.cuda.Event(enable_timing=True, blocking=False, interprocess=False).record(stream=None)
print(json.dumps([replaced, refused]))
"""


def test_stand_ins_take_what_pytorchs_functions_take():
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    replaced, refused = json.loads(done.stdout.splitlines()[-1])
    assert {"current_stream", "synchronize", "get_device_properties", "get_rng_state"} <= set(replaced)
    assert refused == []
