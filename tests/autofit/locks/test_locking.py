"""Predictions for a lock: the same each time and on every machine, with holders that add up to the peak."""

from __future__ import annotations

import pathlib
from decimal import Decimal

import pytest

from autofit.errors import UsageError, WorkloadFailedError
from autofit.locks.configurations import configuration
from autofit.locks.diff import diff_sides, side_named
from autofit.locks.growth import Change, compare
from autofit.locks.holders import Lines
from autofit.locks.lock_file import Lock, LockedConfiguration, lock_text, parse_lock, write_lock
from autofit.locks.locking import predict_each, predictor_for_locks, shortened
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.workloads import refer

WORKLOADS = """
import torch
from autofit_workers.workload import Workload


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))

    def forward(self, rows):
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        return rows


def make_batch(batch_size, device):
    return torch.ones(batch_size, 64, device=device)


def total(model, batch):
    return model(batch).sum()


net = Workload(build_model=Net, make_batch=make_batch, loss=total, optimizer="adam")


def fails(model, batch):
    return model.forwrad(batch)


failing = Workload(build_model=Net, make_batch=make_batch, loss=fails)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("project")
    (made / "mine.py").write_text(WORKLOADS)
    return made


def _locked(folder: pathlib.Path, **options: object) -> LockedConfiguration:
    given = {"model": f"{folder / 'mine.py'}:net", "batch_size": 4096, "gpu": "t4,rtx-3090", **options}
    (found,) = predict_each([configuration("a", given)], folder)
    return found


def test_holders_add_up_and_name_lines_of_the_project(folder: pathlib.Path) -> None:
    found = _locked(folder)
    assert [peak.gpu for peak in found.peaks] == ["t4", "rtx-3090"]
    for peak in found.peaks:
        assert sum(each.num_bytes for each in peak.holders) == peak.allocated_bytes
        assert peak.allocated_bytes <= peak.likely_bytes <= peak.high_bytes
        assert [each.num_bytes for each in peak.holders] == sorted(
            (each.num_bytes for each in peak.holders), reverse=True
        )
    lines = {(each.module, each.line): each.code for each in found.peaks[0].holders}
    number = WORKLOADS.splitlines().index("            rows = torch.relu(layer(rows))") + 1
    assert lines["", f"mine.py:{number}"] == "rows = torch.relu(layer(rows))"
    assert ("layers.*", "(optimizer state)") in lines
    assert ("layers.*", "(parameters)") in lines


def test_a_lock_is_the_same_each_time_and_its_short_form_compares_as_the_same(folder: pathlib.Path) -> None:
    first = _locked(folder)
    again = _locked(folder, fresh=True)
    texts = {lock_text(Lock().with_configuration(shortened(each))) for each in (first, again)}
    assert len(texts) == 1
    read = parse_lock(texts.pop()).configurations["a"]
    for peak in again.peaks:
        locked = read.peak(peak.torch, peak.gpu)
        found = compare("a", locked, peak, Decimal(0))
        assert (found.change, found.lines) == (Change.SAME, ())


def test_the_largest_batch_is_locked_where_it_is_asked_for(folder: pathlib.Path) -> None:
    small, large = _locked(folder, largest_batch=True, batch_size=8).peaks
    assert small.largest_batch is not None
    assert large.largest_batch is not None
    assert 8 < small.largest_batch <= large.largest_batch


def test_an_error_begins_with_the_configurations_name(folder: pathlib.Path) -> None:
    wanted = configuration("broken", {"model": f"{folder / 'mine.py'}:failing", "batch_size": 2})
    with pytest.raises(WorkloadFailedError, match=r"^broken: .*forwrad") as caught:
        predict_each([wanted], folder)
    assert caught.value.message.startswith("broken: ")


def test_a_saved_profile_is_compared_with_another_and_with_a_lock(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings = resolve_one_configuration({"model": f"{folder / 'mine.py'}:net", "gpu": "t4"}, "a test")
    predictor = predictor_for_locks(refer(settings.model, settings), settings)
    for size in (2048, 4096):
        profile = predictor.profile(settings.configuration("a test"), settings.card, size)
        (tmp_path / f"{size}.profile").write_bytes(profile.to_bytes())
    write_lock(tmp_path / "a.toml", Lock().with_configuration(_locked(folder, gpu="t4")))

    def predict(_wanted: object) -> tuple[LockedConfiguration, ...]:
        raise AssertionError("nothing is to be predicted")

    small, large, lock = (
        side_named(str(tmp_path / name), folder, predict)
        for name in ("2048.profile", "4096.profile", "a.toml")
    )
    (grown,) = diff_sides(small, large).configurations
    assert grown.change is Change.GREW
    assert grown.before is not None
    number = WORKLOADS.splitlines().index("            rows = torch.relu(layer(rows))") + 1
    assert f"mine.py:{number}" in {line.place for line in grown.grown_lines}
    listed = sum(line.difference_bytes for line in grown.lines) + grown.others_bytes
    assert listed == grown.after.allocated_bytes - grown.before.allocated_bytes
    (same,) = diff_sides(lock, large).configurations
    assert same.lines == ()
    assert same.difference_bytes == 0


def test_lines_of_libraries_and_of_another_checkout(tmp_path: pathlib.Path) -> None:
    project, checkout = tmp_path / "revision", tmp_path / "checkout"
    lines = Lines(project, checkout)
    assert lines.place(f"{project}/pkg/net.py:3:forward") == "pkg/net.py:3"
    assert lines.place(f"{pytest.__file__}:3:f") == "pytest/__init__.py:3"
    assert lines.place("(parameters)") == "(parameters)"
    assert lines.place(f"{checkout}/.venv/lib/site-packages/timm/net.py:3:f") == "net.py:3"
    with pytest.raises(UsageError, match=r"pkg/net\.py was imported from the checkout, not"):
        lines.place(f"{checkout}/pkg/net.py:3:forward")
