"""Differences between releases of PyTorch, and what is said of them."""

from __future__ import annotations

import pytest

from autofit_workers.spec.releases import DIFFERENCES, between, followed_release, note_on_following
from autofit_workers.spec.versions import SUPPORTED_RELEASES


@pytest.mark.parametrize("text", ["2.8", "2.8.1", "2.8.0+cu128", "2.8.0a0+git1234"])
def test_a_version_is_read_as_its_release(text):
    assert followed_release(text) == "2.8"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1.4", "how PyTorch 1.4 takes memory is not known"),
        ("2.99", "how PyTorch 2.99 takes memory is not known"),
        ("nightly", "'nightly' is no release of PyTorch such as 2.8"),
        ("", "'' is no release"),
    ],
)
def test_another_text_is_refused_with_the_releases_that_are_followed(text, said):
    with pytest.raises(ValueError, match=said) as caught:
        followed_release(text)
    assert str(caught.value).endswith("predictions follow 2.6 to 2.15")


def test_differences_lie_between_two_releases_in_either_order():
    assert between("2.13", "2.13.0+cpu") == ()
    found = between("2.8", "2.13")
    assert found == between("2.13.0+cpu", "2.8")
    assert {each.since for each in found} == {(2, 9), (2, 10), (2, 12)}
    assert [each.since for each in DIFFERENCES] == sorted((each.since for each in DIFFERENCES), reverse=True)


def test_the_note_tells_what_the_followed_release_does():
    older = note_on_following("2.8", "2.13.0+cpu")
    assert older.startswith(
        "PyTorch 2.8 is predicted, traced with 2.13.0+cpu. Taken into account: convolutions "
    )
    assert "indexing with a whole slice, as x[:, 0], adds a gradient of x's size" in older
    assert "Not taken" not in older
    oldest = note_on_following("2.6", "2.13.0+cpu")
    assert ". Not taken into account: FlashAttention keeps its random state as two" in oldest
    newer = note_on_following("2.15", "2.13.0+cpu")
    assert "each matrix product allocates cuBLAS's workspace" in newer
    assert "Not taken" not in newer


def test_the_note_claims_for_a_newer_release_what_an_older_one_can_follow():
    said = note_on_following("2.13", "2.6.0+cu124")
    taken, _, ignored = said.partition(". Not taken into account: ")
    assert "RMSNorm" not in taken
    assert "torch.nn.RMSNorm is one kernel" in ignored
    assert "indexing with a whole slice adds nothing" in ignored


@pytest.mark.parametrize("release", SUPPORTED_RELEASES)
def test_every_tested_release_can_be_followed(release):
    assert f"PyTorch {release} is predicted" in note_on_following(followed_release(release), "2.13.0")
