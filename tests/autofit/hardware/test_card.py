"""The card that a prediction is for."""

from __future__ import annotations

from autofit.hardware.card import Card, card_named


def test_a_card_of_the_catalogue_has_its_own_multiprocessors():
    assert card_named("rtx-3060").multiprocessors == 28
    assert card_named("rtx-3090").multiprocessors == 82


def test_of_a_card_that_is_not_known_they_are_those_of_its_architecture():
    assert card_named(None).multiprocessors is None
    assert Card(name="rtx-3090", architecture="sm_80", context_bytes=0).multiprocessors is None
