"""Restricts a script to the GPU of its rank, and refuses CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from autofit_workers.scripts.ranks import Ranks
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.devices import GPU, NamedDevices


class ScriptDevices(NamedDevices):
    """Function mode that maps the GPU of a script's rank to `cuda:0`, and ends a script that uses another.

    Args:
        name: name of the script.
        ranks: ranks of the script, each of which has the GPU with its local rank as index.
        refuse: ends the script with an error.
    """

    def __init__(self, name: str, ranks: Ranks, refuse: Callable[[Exception], NoReturn]) -> None:
        super().__init__()
        self._name = name
        self._ranks = ranks
        self._refuse = refuse

    def numbered(self, device: Any) -> Any:
        named = super().numbered(device)
        is_own = isinstance(named, torch.device) and named == torch.device("cuda", self._ranks.local_rank)
        return GPU if is_own else named

    def _chosen(self, device: Any) -> Any:
        chosen = super()._chosen(device)
        if isinstance(chosen, torch.device) and chosen.type == "cuda":
            self.require_own(chosen.index)
        return chosen

    def require_own(self, index: int | None) -> None:
        """Ends the script if GPU `index` is neither 0, the default (None), nor its rank's own."""
        ranks = self._ranks
        if not index or index == ranks.local_rank:
            return
        has = (
            f"rank {ranks.rank} has GPU {ranks.local_rank} alone"
            if ranks.num_ranks > 1
            else "a prediction has only GPU 0"
        )
        self._refuse(
            UnsupportedError(
                f"{self._name} asks for GPU {index}, but {has}: run it on one GPU, say with --nproc that a "
                "launcher starts a rank for each, or measure it"
            )
        )

    def refuse_graphs(self, *_args: object, **_options: object) -> NoReturn:
        """Ends a script that captures a CUDA graph, as a graph has its own memory pool."""
        self._refuse(
            UnsupportedError(
                f"{self._name} captures CUDA graphs, whose memory is not predicted: turn them off in the "
                "script, or measure it"
            )
        )
