"""What `--torch` predicts of another release is what that release was seen to do."""

from __future__ import annotations

import json

import pytest
import torch
from torch.distributed.tensor import Shard
from torch.utils._device import DeviceContext
from torch.utils.checkpoint import checkpoint

from autofit_workers.pytorch.dtensors import SPLIT_OFF_SHARD, split_off_view
from autofit_workers.spec.trace import Trace
from autofit_workers.tracing import followed_release
from autofit_workers.trials import door
from tests.versions.cases import Case, all_cases
from tests.versions.installations import RELEASES
from tests.versions.table import RECORDED
from tests.versions.traced import traced

DIGESTS = json.loads(RECORDED.read_text(encoding="utf-8"))
CALLED = """
import torch

from autofit import Workload


def loss(model, batch):
    return model(batch).sum() + torch._foreach_clone([batch])[0].sum()


workload = Workload(
    build_model=lambda: torch.nn.Linear(4, 4),
    make_batch=lambda size, device: torch.ones(size, 4, device=device),
    loss=loss,
    optimizer="sgd",
)
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return {case.name: case for case in all_cases(tmp_path_factory.mktemp("cases"))}


@pytest.mark.parametrize("release", RELEASES)
def test_events_that_differ_are_followed_to_the_byte(release, cases):
    for name, digest in DIGESTS[release].items():
        assert traced(cases[name], release)["digest"] == digest, name


def test_events_are_the_installed_release_s_again_afterwards(cases):
    (name, *_) = DIGESTS["2.8"]
    before = traced(cases[name], None)
    assert traced(cases[name], "2.8")["digest"] != before["digest"]
    assert traced(cases[name], None)["digest"] == before["digest"]


def test_a_shard_is_a_view_of_the_whole_where_the_release_splits_off_views():
    whole = torch.arange(12.0).reshape(4, 3)
    rows, columns = (
        split_off_view(Shard(dimension), whole, 2, 1, with_padding=False) for dimension in (0, 1)
    )
    assert torch.equal(rows, whole[2:])
    assert rows.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert torch.equal(columns, whole[:, 2:])
    assert columns.is_contiguous()
    for release, splits_off_views in (("2.9", True), ("2.10", False), (None, False)):
        followed_release.begin_program(release, shards=True)
        assert (SPLIT_OFF_SHARD.get() is split_off_view) == splits_off_views


@pytest.mark.parametrize(
    "index",
    [
        "m, :", ":, 0", "0, :", ":, i", ":, [1, 2], :", "..., :", ":, None, :", "m", "[[0, 1], [1, 0]], :",
        "1:, :, 2", ":, :, b", "True, :", "0:, -1",
    ],
)  # fmt: skip
def test_indexing_gives_the_same_values_with_a_release_that_slices_whole_dimensions(index):
    x = torch.arange(4 * 5 * 8.0).reshape(4, 5, 8)
    names = {"x": x, "m": x[..., 0] > 70, "i": torch.tensor([0, 3]), "b": torch.arange(8) > 5}
    expected = eval(f"x[{index}]", names)
    followed_release.begin_program("2.8")
    try:
        assert torch.equal(eval(f"x[{index}]", names), expected)
    finally:
        followed_release.begin_program(None)


def test_tensors_are_no_sequences_with_a_release_that_slices_whole_dimensions_nor_afterwards():
    for release in ("2.8", None):
        followed_release.begin_program(release)
        assert torch.tensor([torch.tensor(3), torch.tensor(4)]).tolist() == [3, 4]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_whole_slices_are_followed_in_blocks_that_backward_runs_again(use_reentrant):
    made = []

    def block(x):
        first = x[:, 0]
        if first.grad_fn is not None:
            made.append(first.grad_fn.next_functions[0][0].name())
        return first * 2

    followed_release.begin_program("2.8")
    try:
        x = torch.ones(3, 4, requires_grad=True)
        checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    finally:
        followed_release.begin_program(None)
    assert made[-1] == "SliceBackward0"
    assert x.grad is not None


def test_a_mode_that_code_left_behind_does_not_keep_a_release_followed():
    followed_release.begin_program("2.8")
    left = DeviceContext(torch.device("cpu"))
    left.__enter__()
    try:
        followed_release.begin_program(None)
        x = torch.ones(3, 4, requires_grad=True)
        assert "Slice" not in x[:, 0].grad_fn.next_functions[0][0].name()
    finally:
        while torch.overrides._get_current_function_mode() is not None:
            torch.overrides._get_current_function_mode().__exit__(None, None, None)


def test_an_operator_that_the_release_lacks_is_told(tmp_path):
    (tmp_path / "called.py").write_text(CALLED, encoding="utf-8")
    case = Case(name="called", workload=f"{tmp_path / 'called.py'}:workload")
    notes = {
        release: Trace.from_json(door.run(case.spec(release)).trace_json).notes
        for release in ("2.11", "2.12")
    }
    told = "PyTorch 2.11 has no aten._foreach_clone.default, which this step calls"
    assert any(note.startswith(told) for note in notes["2.11"])
    assert not any("which this step calls" in note for note in notes["2.12"])
