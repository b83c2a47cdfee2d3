"""The newest release of PyTorch predicts as the table of releases says, where its download is kept."""

from __future__ import annotations

import pytest

from tests.versions.installations import KEPT, RELEASES, Installation
from tests.versions.table import BAD, compare, traced_here

pytestmark = pytest.mark.process
NEWEST = list(RELEASES)[-1]
# Seconds each, of several kinds; and what is known to differ.
NAMES = ("davenet fp32 train", "lstm amp-bf16", "gpt2 bf16", "hf:LlamaForCausalLM", "differing")


@pytest.mark.timeout(300)
def test_the_newest_release_predicts_as_the_table_says(tmp_path):
    if not (KEPT / NEWEST / "installed").exists():
        pytest.skip(f"PyTorch {NEWEST} is not downloaded: run `make versions`, which keeps it")
    here = {case["name"]: case for case in traced_here(tmp_path, NAMES)}
    found = list(compare(NEWEST, Installation(KEPT / NEWEST), tmp_path, NAMES, here))
    assert len(found) == len(here) > len(NAMES)
    assert [each for each in found if each[1] in BAD] == []
