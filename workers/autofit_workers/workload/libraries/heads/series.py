"""Batches of time series for models of transformers, with the lengths of a configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head


def forecast() -> Callable[[Head], Batches]:
    """Function that makes batches of time series and their continuations, for forecasting."""
    return lambda head: Batches(functools.partial(_forecast, head=head))


def labelled() -> Callable[[Head], Batches]:
    """Function that makes batches of time series, each with a class or some numbers as labels."""
    return lambda head: Batches(functools.partial(_labelled, head=head))


def _width(config: Any) -> int:
    """Number of values that a time series has at each time."""
    names = ("num_input_channels", "input_size")
    return next((width for name in names if (width := getattr(config, name, None)) is not None), 1)


def _values(batch_size: int, length: int, width: int, device: torch.device, *, is_flat: bool) -> torch.Tensor:
    shape = (batch_size, length) if is_flat and width == 1 else (batch_size, length, width)
    return torch.randn(shape, device=device)


def _forecast(batch_size: int, device: torch.device, *, head: Head) -> Batch:
    """Batch of random time series, with their past, their future and features of time."""
    config, width = head.config, _width(head.config)
    lags = getattr(config, "lags_sequence", None)  # distances to earlier times whose values are features too
    values = functools.partial(_values, batch_size, width=width, device=device, is_flat=lags is not None)
    past, future = config.context_length + max(lags or [0]), config.prediction_length
    batch = {"past_values": values(past), "future_values": values(future)}
    for name, length in (("past", past), ("future", future)):
        if head.takes(f"{name}_time_features"):
            shape = (batch_size, length, config.num_time_features)
            batch[f"{name}_time_features"] = torch.randn(shape, device=device)
    if "past_observed_mask" in head.needed:
        batch["past_observed_mask"] = torch.ones_like(batch["past_values"])
    for name, number in (
        ("categorical", "num_static_categorical_features"),
        ("real", "num_static_real_features"),
    ):
        if num_features := getattr(config, number, 0):
            static = torch.zeros if name == "categorical" else torch.randn
            kind = torch.int64 if name == "categorical" else None
            batch[f"static_{name}_features"] = static(batch_size, num_features, dtype=kind, device=device)
    return batch


def _labelled(batch_size: int, device: torch.device, *, head: Head) -> Batch:
    config = head.config
    series = _values(batch_size, config.context_length, _width(config), device, is_flat=False)
    if head.task.table == "TIME_SERIES_CLASSIFICATION":
        classes = getattr(config, "num_targets", None) or config.num_labels
        return {"past_values": series, "target_values": torch.randint(classes, (batch_size,), device=device)}
    return {
        "past_values": series,
        "target_values": torch.randn(batch_size, config.num_targets, device=device),
    }
