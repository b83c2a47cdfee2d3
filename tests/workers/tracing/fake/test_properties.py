"""Properties of a simulated card, as `torch.cuda` reports them."""

from __future__ import annotations

import pytest

from autofit_workers.tracing.fake.properties import card_properties


@pytest.mark.parametrize(("architecture", "name"), [("sm_80", "A100"), ("sm_90", "H100")])
def test_a_card_of_80_gb_has_the_name_by_which_scripts_choose(architecture, name):
    properties = card_properties(architecture, 80 * 2**30)
    assert name in properties.name
    assert f"sm_{properties.major}{properties.minor}" == architecture


def test_cards_of_other_architectures_are_named_after_them():
    assert "sm_86" in card_properties("sm_86", 24 * 2**30).name
