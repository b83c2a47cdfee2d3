"""Fits what PyTorch 2.4 and its cuDNN 9 changed, on timm's forward passes, and scores it.

    python tests/bench/time/fit_newer.py               print constants.toml's lines, fitted on all rows
    python tests/bench/time/fit_newer.py --folds 6     and how families fare that were left out of the fit

Of both layouts. Convolutions of which cuDNN 9 has other kernels than cuDNN 8 get constants of their own
(`newer_classes`); the kernels of other classes keep the constants of PyTorch 1.12, times a factor for each
class (`since_pytorch_2`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.constants import constants  # noqa: E402
from autofit_workers.replay.time.costs import Costs  # noqa: E402
from autofit_workers.replay.time.kernels import KernelClass  # noqa: E402
from tests.bench.time import cards, timm_steps  # noqa: E402
from tests.bench.time.fit_steps import CARD, Model, Rows, left_out, parsed_arguments, traced  # noqa: E402

RELEASE = "2.4.0"
# Classes with constants of their own, with where each begins and how far from there it may go.
NEWER: dict[str, dict[str, tuple[float, float]]] = {
    "depthwise_convolution contiguous": {
        "bandwidth": (0.5, 0.6), "vector": (0.3, 0.6), "taps_power": (0.3, 1.0),
    },
    "depthwise_convolution channels_last": {
        "bandwidth": (0.5, 0.6), "vector": (0.3, 0.6), "taps_power": (0.3, 1.0),
    },
    "grouped_convolution fprop channels_last": {
        "bandwidth": (0.5, 0.6), "rate": (0.02, 1.0), "most": (0.9, 0.2), "width_power": (0.5, 0.5),
        "own": (2.0, 1.0),
    },
}  # fmt: skip
# Channels of groups that cuDNN 9 has kernels for in channels last, whatever their number.
_OWN = {"grouped_convolution fprop channels_last": ((16, 32, 64, 128), 1)}
FACTORS = (
    KernelClass.CONVOLUTION,
    KernelClass.GROUPED_CONVOLUTION,
    KernelClass.BATCH_NORM,
    KernelClass.LAYER_NORM,
    KernelClass.ATTENTION,
    KernelClass.COPY,
    KernelClass.REORDER,
    KernelClass.REDUCTION,
    KernelClass.POOL,
)
_FACTOR_SPREAD = 0.5


class NewerModel(Model):
    """The seconds of forward passes, as constants that PyTorch 2 changed."""

    def __init__(self, rows: Rows) -> None:
        costs = Costs(cards.speeds(CARD), constants(), allow_tf32=True, of_pytorch_1=True)
        self._kept = np.array([costs.seconds(kernel) for kernel in rows.kernels])
        self._of_kind = {
            kind: np.array(
                [
                    k.kind is kind and name not in NEWER
                    for k, name in zip(rows.kernels, rows.names, strict=True)
                ]
            )
            for kind in FACTORS
        }
        super().__init__(rows)
        self.classes = [name for name in self.classes if name in NEWER]
        self._launch = self._speeds.launch_seconds

    def _starts(self) -> Any:
        for name in self.classes:
            for constant, start in NEWER.get(name, {}).items():
                yield f"{name}|{constant}", start
        for kind in FACTORS:
            if self._of_kind[kind].any():
                yield f"{kind}|factor", (1.0, _FACTOR_SPREAD)

    def _own_of(self, name: str) -> tuple[tuple[int, ...], int]:
        return _OWN[name]

    def seconds(self, point: Any) -> Any:
        """Of each different kernel."""
        values = dict(zip(self.names, np.exp(point), strict=True))
        seconds = self._kept.copy()
        for kind, places in self._of_kind.items():
            seconds[places] *= values.get(f"{kind}|factor", 1.0)
        for name in self.classes:
            of = {key.split("|")[1]: value for key, value in values.items() if key.split("|")[0] == name}
            seconds[self._places[name]] = self._launch + self._of_class(name, of)
        return seconds


def print_errors(rows: Rows, errors: Sequence[float]) -> None:
    """Median and 90th percentile by layout, from log(predicted / measured) of each row."""
    for layout in ("nchw", "nhwc", ""):
        of = [abs(math.expm1(e)) for r, e in zip(rows.rows, errors, strict=True) if layout in r.layout]
        median, ninth = np.median(of), np.quantile(of, 0.9)
        print(f"{layout or 'all':5} median {median:.1%}, p90 {ninth:.1%}, {len(of)} rows")


def main() -> None:
    arguments = parsed_arguments(__doc__)
    read = timm_steps.read(arguments.folder, mode="infer", card=CARD, torch_release=RELEASE)
    rows = Rows(list(traced([row for row in read if row.model in (arguments.model or [row.model])])))
    model = NewerModel(rows)
    point = model.fitted()
    for name, value in zip(model.names, np.exp(point), strict=True):
        print(f"{name:50} {value:.3g}")
    print_errors(rows, list(np.log(model.predicted(point) / rows.measured)))
    if arguments.folds:
        print("families left out")
        print_errors(rows, list(left_out(model, rows, arguments.folds)))


if __name__ == "__main__":
    main()
