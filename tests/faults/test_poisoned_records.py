"""Records of other versions and damaged ones among many: each costs itself alone, wherever it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.poison import Filled, new_storage, wrong

NUM_RECORDS = 60


@pytest.mark.parametrize("kind", ["journal", "sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def test_poisoned_records_change_no_other_answer_and_are_counted(kind: str, tmp_path: Path) -> None:
    with new_storage(kind, tmp_path) as url:
        assert wrong(Filled(url, NUM_RECORDS)) == []
