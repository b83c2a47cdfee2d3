"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.conformance.dispatcher")

from tests.marks import CRD_FOLDER_VARIABLE  # noqa: E402 - what is asserted in is rewritten first
from tests.workers.predict.plan_servers import servers  # noqa: E402
from workers.predict.plans import cudnn_plans  # noqa: E402

# The settings refuse AUTOFIT_… variables that they do not know, in every process that a test starts.
if "AUTOFIT_CRD_DIR" in os.environ:
    os.environ[CRD_FOLDER_VARIABLE] = os.environ.pop("AUTOFIT_CRD_DIR")


# Files that start clusters wait longer than they compute, some for minutes: the last to begin would be
# waited for by itself. They come first, where tests run side by side.
_SLOW = ("tests/service/", "tests/autofit/service/", "tests/faults/", "tests/conformance/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_SLOW))


@pytest.fixture(autouse=True)
def state_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Gives every test a state directory of its own."""
    path = tmp_path / "state"
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(path))
    return path


@pytest.fixture
def no_server() -> Iterator[None]:
    """Begins and ends without a process of libcudnn, so that the test's own can be counted."""
    cudnn_plans._server.close()
    assert servers() == []
    yield
    cudnn_plans._server.close()
    assert servers() == []
