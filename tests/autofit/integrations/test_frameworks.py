"""A library that an integration is for, and one that is not there."""

from __future__ import annotations

import json

import pytest

from autofit.errors import UsageError
from autofit.integrations.frameworks import framework


def test_the_first_name_that_is_installed_is_imported():
    assert framework("json", install="json") is json
    assert framework("no_such_library.part", "json", install="json") is json


def test_a_library_that_is_missing_is_one_sentence_and_an_import_error():
    with pytest.raises(UsageError, match=r"no_such_library is not installed, .*: pip install it-2") as raised:
        framework("no_such_library", install="it-2")
    assert isinstance(raised.value, ImportError)
