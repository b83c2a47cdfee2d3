"""A setting of all knobs, `Knobs`."""

from __future__ import annotations

import pytest

from autofit_workers.spec.knobs import KNOBS


@pytest.mark.parametrize("name", KNOBS)
def test_a_default_reads_as_itself(name: str) -> None:
    """`Knobs` does not check a value that is its knob's default."""
    assert KNOBS[name].read(KNOBS[name].default) is KNOBS[name].default
