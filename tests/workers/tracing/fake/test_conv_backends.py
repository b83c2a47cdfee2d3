"""No convolution asks for a GPU's properties, which a build with CUDA reads of a card that is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_WORKLOADS = Path(__file__).parents[1] / "small_workloads.py"
# In a process of its own, as what PyTorch is asked is watched before anything replaces it.
_CODE = """
import sys
import torch

select, devices = torch._C._select_conv_backend, set()

def watched(*args, **kwargs):
    devices.update(each.device.type for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
    return select(*args, **kwargs)

torch._C._select_conv_backend = watched
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.tracing.probe import predict

workload, precision = sys.argv[1:]
spec = TrialSpec(
    workload=parse_reference(workload), batch_size=4, probe=Probe.PREDICT, knobs=Knobs(precision=precision)
)
outcome = predict(spec)
assert outcome.error is None, outcome.error
assert devices == {"cpu"}, devices
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_which_library_computes_a_convolution_is_asked_for_the_host(precision):
    command = [sys.executable, "-c", _CODE, f"{_WORKLOADS}:convolutional", precision]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
