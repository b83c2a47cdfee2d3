"""Accelerate's `find_executable_batch_size`, which begins with the predicted size."""

from __future__ import annotations

from autofit.integrations.frameworks import framework
from autofit.training.find_batch_size import find_executable_batch_size

framework("accelerate", install="accelerate")

__all__ = ["find_executable_batch_size"]
