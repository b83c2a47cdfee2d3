"""The tests of this folder are collected where PyTorch sees a GPU; elsewhere one of them says so."""

from __future__ import annotations

import torch

collect_ignore = (
    [] if torch.cuda.is_available() else ["test_cuda_probe.py", "test_recorder.py", "test_recurrent_sizes.py"]
)
