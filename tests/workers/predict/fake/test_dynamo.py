"""The light compiler package answers as the real one does where nothing is compiled."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: where the real package is there already, it stays.
_CODE = """
import sys
from workers.predict.fake import dynamo
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
)


def test_decorators_with_and_without_options_leave_a_function_as_it_is():
    command = [sys.executable, "-c", _CODE, *_DECORATORS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
