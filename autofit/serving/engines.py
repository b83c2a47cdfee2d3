"""Table of the serving engines by name."""

from __future__ import annotations

from autofit.serving import sglang, tgi, vllm
from autofit.serving.engine import Engine

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (vllm.ENGINE, sglang.ENGINE, tgi.ENGINE)}
