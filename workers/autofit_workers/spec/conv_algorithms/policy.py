"""Backend policies: how PyTorch lets a library choose convolution algorithms."""

from __future__ import annotations

from dataclasses import dataclass

from autofit_workers.spec.conv_algorithms.algorithm import ConvAlgorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPolicy(ConvAlgorithm):
    """Convolution algorithm that only sets global switches of the backend, for every convolution alike.

    Attributes:
        enabled: whether the backend is used: cuDNN on CUDA, oneDNN on the CPU.
        benchmark, deterministic: the flags of `torch.backends.cudnn`.
        workspace_cap_bytes: the largest workspace that cuDNN may take; None for no cap.
        variables: environment variables, which the backend reads when it is loaded.
        lines_on_cpu: lines that a user adds to a training script on the CPU; `python_lines` are for CUDA.
    """

    enabled: bool = True
    benchmark: bool = False
    deterministic: bool = False
    workspace_cap_bytes: int | None = None
    variables: tuple[tuple[str, str], ...] = ()
    lines_on_cpu: tuple[str, ...] = ()

    def lines_on(self, device_kind: str) -> tuple[str, ...]:
        return self.lines_on_cpu if device_kind == "cpu" else self.python_lines
