"""The light compiler package answers as the real one does where nothing is compiled."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: where the real package is there already, it stays.
_CODE = """
import sys
from autofit_workers.tracing.fake import dynamo
dynamo.install()
import torch

for decorator in sys.argv[1:]:
    double = eval(decorator)(lambda x: 2 * x)
    assert double(3) == 6, decorator
    assert not hasattr(sys.modules["torch._dynamo"], "__file__"), f"{decorator} imports the compiler"
"""
_DECORATORS = (
    "torch.compiler.disable",
    "torch.compiler.disable(recursive=False)",
    "torch.compiler.disable(reason='asks for values')",
    "torch.compile",
    "torch.compile(dynamic=True)",
    "torch._dynamo.allow_in_graph",
    "torch._dynamo.assume_constant_result",
)
_UTILS = """
import sys
from autofit_workers.tracing.fake import dynamo
dynamo.install()
from torch._dynamo.utils import is_compile_supported

assert not hasattr(sys.modules["torch._dynamo"], "__file__"), "a function to call later imports the compiler"
light = is_compile_supported("cpu"), is_compile_supported("meta")
from torch._dynamo.utils import counters, is_compile_supported

assert hasattr(sys.modules["torch._dynamo"], "__file__")
assert light == (is_compile_supported("cpu"), is_compile_supported("meta")), light
"""
_INDUCTOR = """
import sys
from autofit_workers.tracing.fake import dynamo
dynamo.install()
import torch
from torch._inductor.utils import get_gpu_dram_gbps

assert hasattr(sys.modules["torch._dynamo"], "__file__")
package = sys.modules["torch._inductor"]
assert torch._inductor is package and package.__spec__.loader.get_filename() == package.__file__
assert package.config is sys.modules["torch._inductor.config"]
"""


def test_decorators_with_and_without_options_leave_a_function_as_it_is():
    _require_success(_CODE, *_DECORATORS)


def test_what_is_called_of_the_utils_brings_the_real_ones():
    _require_success(_UTILS)


def test_a_submodule_of_the_compiler_brings_the_whole_compiler():
    _require_success(_INDUCTOR)


def _require_success(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
