"""The list of licences: which expressions pass, and what stands in metadata."""

from __future__ import annotations

from email.message import Message

import pytest

from tests.licences import is_allowed, licence_of, required


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only OR BSD-3-Clause", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("AGPL-3.0-or-later", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("", False),
    ],
)
def test_all_of_a_conjunction_and_one_of_a_choice_have_to_be_listed(licence: str, expected: bool):
    assert is_allowed(licence) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT"), ("License", "Apache 2.0")], "MIT"),
        ([("License", "3-Clause BSD License")], "BSD-3-Clause"),
        (
            [("License", "a text\nof many lines"), ("Classifier", "License :: OSI Approved :: MIT License")],
            "MIT",
        ),
        ([("License", "Proprietary")], "Proprietary"),
        ([], ""),
    ],
)
def test_a_licence_is_the_expression_else_a_name_else_a_classifier(
    fields: list[tuple[str, str]], expected: str
):
    metadata = Message()
    for name, value in fields:
        metadata[name] = value
    assert licence_of(metadata) == expected  # type: ignore[arg-type] - as importlib.metadata's are


def test_what_is_required_is_followed_to_the_end():
    found = set(required("autofit-gpu"))
    # The last of aiohttp, of ray[default].
    assert {"autofit-gpu", "ray", "msgpack", "aiohttp", "yarl"} <= found
    assert "pytest" not in found
