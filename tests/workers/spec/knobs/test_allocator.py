"""Values of the knob `allocator`, and the settings of PyTorch's allocator that say the same."""

from __future__ import annotations

import pytest

from autofit_workers.spec.knobs.allocator import allocator_conf, allocator_of


@pytest.mark.parametrize("value", ["default", "expandable_segments", "max_split:128"])
def test_a_value_is_read_from_its_setting(value):
    assert allocator_of(allocator_conf(value)) == value


@pytest.mark.parametrize(
    ("conf", "value"),
    [
        (" expandable_segments : True, ", "expandable_segments"),
        ("max_split_size_mb:1", None),
        ("expandable_segments:True,max_split_size_mb:128", None),
        ("garbage_collection_threshold:0.8", None),
    ],
)
def test_settings_without_a_value_have_none(conf, value):
    assert allocator_of(conf) == value
