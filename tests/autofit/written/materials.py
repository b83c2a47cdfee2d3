"""Settings that tests write, and a process in which tools can be imported beside a PyTorch for the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from autofit.written.setting import Setting
from autofit.written.writing import Wish, Written, write_setting
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Parallel

# Wheels of torchvision for CUDA cannot be loaded beside a PyTorch for the CPU, and then neither can what
# imports them: transformers, torchmetrics.
_LOADABLE = """
import importlib.util
if importlib.util.find_spec("torchvision") is not None:
    import torch
    from pathlib import Path
    library = Path(importlib.util.find_spec("torchvision").submodule_search_locations[0])
    try:
        torch.ops.load_library(next(library.glob("_C*.so"), library))
    except (OSError, RuntimeError):
        from autofit_workers.workload.libraries import torchvision_operators
        torchvision_operators.declare()
"""


def setting(parallel: str = "", batch_size: int = 4, accumulation: int = 1, **others: Any) -> Setting:
    """Setting whose knobs are given by name, among the other fields."""
    fields = {
        key: others.pop(key) for key in ("num_nodes", "device_kind", "script", "trains") if key in others
    }
    return Setting(
        batch_size=batch_size,
        knobs=Knobs(**others),
        accumulation=accumulation,
        parallel=Parallel.named(parallel),
        **fields,
    )


def write(name: str, path: Path, of: Setting) -> Written:
    """Writes a setting into one file."""
    (written,) = write_setting(of, (Wish.parse(f"{name}={path}"),))
    return written


def python(folder: Path, *arguments: str | Path, code: str = "", timeout: float = 200) -> str:
    """Runs Python in a folder, with one thread and without GPUs; returns what it prints on stdout.

    Args:
        folder: working directory; its files can be imported.
        arguments: arguments of Python, such as `-m MODULE`; with `code`, those of the code.
        code: Python code to run.
    """
    (folder / "sitecustomize.py").write_text(_LOADABLE)
    path = os.pathsep.join((str(folder), *(part for part in sys.path if part)))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",  # LLaMA-Factory's, of transformers
        "PYTHONWARNINGS": "ignore",
    }
    called = [sys.executable, *(("-c", code) if code else ()), *map(str, arguments)]
    done = subprocess.run(
        called, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
