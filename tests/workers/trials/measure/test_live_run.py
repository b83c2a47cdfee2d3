"""Peaks of a loop that are read while it runs, beside what was reached before and what others reset."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofit_workers.spec.errors import DeviceError, UnsupportedError
from autofit_workers.trials.measure.live_run import LivePeaks, RunningPeak, torchs_own

MIB = 2**20


@pytest.mark.parametrize(
    ("readings", "inside"),
    [
        ([10, 10, 10], None),  # the peak may be older
        ([10, 12, 12], 12),
        ([10, 4, 4], 4),  # somebody reset it: all of it is newer
        ([10, 4, 7, 7], 7),
        ([10, 12, 5, 6], 12),
    ],
)
def test_a_statistic_that_changed_tells_a_peak_of_the_time_between(readings, inside):
    peak = RunningPeak(readings[0])
    for reading in readings[1:]:
        peak.note(reading)
    assert (peak.before_bytes, peak.inside_bytes) == (readings[0], inside)


def on_cards(*cards: int) -> nn.Module:
    model = nn.ModuleList()
    with FakeTensorMode():
        for card in cards:
            layer = nn.Module()
            layer.weight = nn.Parameter(torch.empty(4, device=f"cuda:{card}"))
            model.append(layer)
    return model


def test_of_several_cards_the_one_with_the_largest_peak_counts():
    readings = {0: (1, 2), 1: (10, 20)}
    live = LivePeaks(on_cards(0, 1), [], read=lambda: readings)
    readings = {0: (3, 5), 1: (10, 24)}
    live.note()
    assert live._card() == 1
    assert live.before() == {"allocated_bytes": 10, "reserved_bytes": 20}
    assert live._cards[0][1].inside_bytes == 5


def test_a_card_that_comes_into_use_later_was_empty_before():
    readings: dict[int, tuple[int, int]] = {}
    live = LivePeaks(on_cards(0), [], read=lambda: readings)
    readings = {0: (3, 5)}
    live.note()
    assert live.before() == {"allocated_bytes": 0, "reserved_bytes": 0}
    assert live._cards[0][1].inside_bytes == 5


def test_a_device_without_peaks_is_refused():
    with pytest.raises(DeviceError, match="the model is on meta, where no peak is kept"):
        LivePeaks(nn.Linear(2, 2, device="meta"), [])
    with pytest.raises(UnsupportedError, match="int is no model"):
        LivePeaks(3, [])


def test_an_optimizer_is_found_in_what_a_library_wraps_around_it():
    class Wrapped:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    inner = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert torchs_own(Wrapped(Wrapped(inner))) is inner
    with pytest.raises(UnsupportedError, match="str is no optimizer of PyTorch"):
        torchs_own("adam")
