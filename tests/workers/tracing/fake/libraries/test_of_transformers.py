"""What a prediction says of transformers' own ways."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autofit_workers.tracing.fake.libraries import of_transformers
from autofit_workers.workload.libraries import transformers_releases


@pytest.fixture(autouse=True)
def _program():
    of_transformers.begin_program()
    yield
    of_transformers.begin_program()


def test_a_program_whose_layers_were_to_be_dealt_out_is_told_that_it_had_one_card():
    module = SimpleNamespace(_get_device_map=lambda _model, device_map, **_options: {"": device_map})
    transformers_releases._note_where_made(module, of_transformers._dealt_out.append)
    assert module._get_device_map(None, {"": 0}, max_memory=None) == {"": {"": 0}}
    assert of_transformers.notes() == ()
    assert module._get_device_map(None, "auto", max_memory=None) == {"": "auto"}
    module._get_device_map(None, "auto")
    (note,) = of_transformers.notes()
    assert note.startswith('device_map="auto" was followed with one card')
    assert note.endswith("--parallel device-map:N")
    of_transformers.begin_program()
    assert of_transformers.notes() == ()
