"""Predictions against published measurements, where the table is at hand.

`GROUND_TRUTH_TABLES`, or `../shared/groundtruth` beside the repository, names the folder of
`gpumemnet_timm.csv`: the maximum GPU memory of timm models in fp32 training on a 40 GB-class card,
as NVML saw it (GPUMemNet by itu-rad, CC BY 4.0). The table is not copied into the project.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

import autofit

GIB, MIB = 1024**3, 1024**2
TABLES = Path(os.environ.get("GROUND_TRUTH_TABLES", Path(__file__).parents[3] / "shared" / "groundtruth"))
TIMM = TABLES / "gpumemnet_timm.csv"
# Context and monitoring are in every row of the table, and its authors do not say how much.
CONSTANT_BYTES = range(int(1.70 * GIB), int(1.85 * GIB) + 1, MIB)


def rows_of(model: str) -> dict[int, int]:
    """Measured bytes by batch size."""
    with TIMM.open(encoding="utf-8", newline="") as file:
        return {
            int(row["batch_size"]): int(float(row["real_max_gpu_mem_MiB"]) * MIB)
            for row in csv.DictReader(file)
            if row["timm_model"] == model
        }


def largest_error(measured: dict[int, int], predicted: dict[int, int], constant_bytes: int) -> float:
    return max(
        abs(predicted[batch_size] + constant_bytes - measured_bytes) / measured_bytes
        for batch_size, measured_bytes in measured.items()
    )


@pytest.mark.skipif(not TIMM.exists(), reason=f"no table of published measurements at {TIMM}")
def test_resnet50_with_adam_is_within_4_percent_of_the_published_measurements() -> None:
    measured = rows_of("resnet50")
    assert list(measured) == [8, 16, 32, 64, 128]
    curve = autofit.peak_curve("resnet50", optimizer="adam", conv_algo="cudnn", precision="fp32")
    predicted = {batch_size: curve(batch_size).peak_reserved_bytes for batch_size in measured}
    errors = {constant: largest_error(measured, predicted, constant) for constant in CONSTANT_BYTES}
    constant = min(errors, key=lambda constant: errors[constant])
    residuals = {size: (measured[size] - predicted[size]) // MIB for size in measured}
    assert errors[constant] <= 0.04, f"MiB left over by batch size: {residuals}"
