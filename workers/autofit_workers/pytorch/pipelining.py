"""How pipeline stages agree before the first step."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import _utils, schedules

from autofit_workers.pytorch.private_name import PrivateName

__all__ = ["WARM_UP", "inference_mode"]

# Exchanges with the other stages, before the first step, whether shapes vary; replaced, as there are none.
WARM_UP = PrivateName(schedules._PipelineSchedule, "_warmup_p2p")
# Whether shapes are exchanged at each step or known before; None in releases whose stages agree on nothing.
inference_mode: Any = getattr(_utils, "InferenceMode", None)
