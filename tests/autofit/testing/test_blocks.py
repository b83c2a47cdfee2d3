"""The fixture `peak_memory`: blocks of tests, in forks of pytest's process."""

from __future__ import annotations

import pytest

from tests.autofit.testing.projects import PLUGIN, WORKLOAD, alone  # noqa: F401 - a fixture

pytest_plugins = "pytester"
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("alone")]

TESTS = """
import os
import warnings
from net import *

PROCESS = os.getpid()
BEFORE = (torch.cuda.is_available(), torch.cuda.get_device_properties, torch.Tensor.share_memory_)

@pytest.fixture
def model():
    return build()

def steps(model, device):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss(model, batch(4096, device)).backward()
        optimizer.step()

def test_a_block_takes_what_the_workload_takes(model, peak_memory):
    torch.randn(500, 500) @ torch.randn(500, 500)  # begins PyTorch's threads in the fork
    with peak_memory(gpu="t4") as peak:
        steps(model.to(peak.device), peak.device)
    assert os.getpid() != PROCESS
    expected = autofit.estimate(made(), batch_size=4096, gpu="t4")
    assert peak.allocated_bytes == expected.peak_allocated_bytes
    assert peak.likely_bytes == expected.needed.likely_bytes
    assert peak.high_bytes >= peak.likely_bytes
    assert peak.breakdown.parameters == expected.breakdown.parameters
    assert peak.breakdown.optimizer_state == expected.breakdown.optimizer_state

def test_a_model_that_is_built_in_the_block(peak_memory):
    with peak_memory() as peak:
        steps(build().to(peak.device), "cuda")
    with peak_memory() as smaller:
        with torch.inference_mode():
            loss(build().cuda(), batch(4096, "cuda"))
    assert smaller.likely_bytes < peak.likely_bytes

def test_nothing_is_left_in_the_process_of_pytest(model):
    steps(model, "cpu")
    assert os.getpid() == PROCESS
    assert (torch.cuda.is_available(), torch.cuda.get_device_properties, torch.Tensor.share_memory_) == BEFORE

def test_too_much(peak_memory, record_property):
    print("said in the fork")
    record_property("number", 7)
    warnings.warn("warned in the fork")
    with peak_memory(gpu="t4") as peak:
        torch.zeros(2**28, device=peak.device)
    assert peak.likely_bytes < 2**20

def test_skips(peak_memory):
    pytest.skip("skipped in the fork")

@pytest.mark.xfail
def test_known(peak_memory):
    assert False

def test_dies(peak_memory):
    os.kill(os.getpid(), 9)

def test_reads_too_early(peak_memory):
    with peak_memory() as peak:
        peak.likely_bytes

def test_has_no_such_card(peak_memory):
    with peak_memory(gpu="t44"):
        pass

def test_fails_in_the_block(peak_memory):
    with peak_memory() as peak:
        build()(torch.zeros(8, 3, device=peak.device))
"""


def test_blocks_are_predicted_in_forks_and_tests_end_as_they_did_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(net=WORKLOAD, test_block=TESTS)
    result = pytester.runpytest_subprocess(
        *PLUGIN, "-rA", "-p", "no:cacheprovider", "--junitxml=report.xml", "-o", "junit_family=legacy"
    )
    result.assert_outcomes(passed=3, failed=5, skipped=1, xfailed=1, warnings=1)
    text = result.stdout.str()
    for said in (
        "SKIPPED [1] test_block.py:53: skipped in the fork",
        "UserWarning: warned in the fork",
        "said in the fork",
        ">       assert peak.likely_bytes < 2**20",
        "the test's process ended before the test did (SIGKILL)",
        "a block's peak is known once the block has ended",
        "no card named 't44' in the catalogue (Did you mean t4?)",
        "RuntimeError",
    ):
        assert said in text, said
    assert "FAILED test_block.py::test_too_much - assert " in text
    assert '<property name="number" value="7"' in (pytester.path / "report.xml").read_text(encoding="utf-8")
