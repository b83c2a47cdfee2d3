"""The same question a second time: answered from the storage, as long as nothing of it has changed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

import autofit
from autofit.dispatch.base import Devices
from autofit.errors import DriverError, StorageError
from autofit.events import Event, TuneFinished, TuneStarted
from autofit.hardware.budget import Budget
from autofit.hardware.gpus import LocalGpu
from autofit.predict.intervals import observations
from autofit.predict.times.measured_steps import MeasuredStep, keep
from autofit.settings.resolve import resolve_settings
from autofit.settings.tune_settings import TuneSettings
from autofit.study.storage import open_storage
from autofit.tuning import earlier_answers
from autofit.tuning.found import Best, FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.tuning.schema import TUNE_SCHEMA
from autofit_workers.process.sources import content_digest
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import Device, Evidence
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.run import close_predictor
from tests.autofit.predict.test_observations import SEEN

GIB = 1024**3
CARD = LocalGpu(
    name="NVIDIA T4", uuid="a", architecture="sm_75", total_bytes=15 * GIB, used_bytes=0, driver_version="1"
)


def result(*, is_settled: bool = True, **changes: Any) -> TuneResult:
    knobs = Knobs(conv_algo="native")
    entry = FrontierEntry(
        knobs=knobs,
        largest_batch=20,
        peak_reserved_bytes=GIB,
        device_peak_bytes=GIB,
        first_failing_batch=21,
        reason="21 is too large",
        evidence=Evidence.MEASURED,
        is_settled=is_settled,
    )
    best = Best(
        batch_size=20,
        knobs=knobs,
        peak_allocated_bytes=GIB,
        peak_reserved_bytes=GIB,
        device_peak_bytes=GIB,
        evidence=Evidence.MEASURED,
    )
    parts: dict[str, Any] = {
        "workload": "w",
        "budget": Budget(device_total_bytes=GIB, context_bytes=1, other_bytes=2, margin_bytes=3),
        "device": Device(kind="cuda", name="card"),
        "best": best,
        "frontier": (entry,),
        "trials": (),
        "wall_seconds": 1.5,
        "study": "mine",
        "fingerprint": "f",
        "answered_seconds": 1.6e9,
    }
    return TuneResult(**{**parts, **changes})


class Asking:
    """A workload with a neighbour that it imports, and the question that is asked of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.workload = folder / "net.py"
        self.neighbour = folder / "layers.py"
        self.workload.write_text("import layers\n")
        self.neighbour.write_text("width = 8\n")

    @property
    def sources(self) -> dict[str, str]:
        files = (self.workload, self.neighbour)
        return {str(file): digest for file in files if (digest := content_digest(file)) is not None}

    def question(
        self,
        *,
        local: Callable[[], tuple[LocalGpu, ...]] = lambda: (CARD,),
        devices: Devices = Devices(num_gpus=1, names=("T4",)),  # noqa: B008 - frozen
        **options: Any,
    ) -> earlier_answers.Question:
        settings = resolve_settings({"model": "net", "gpu": "t4", **options}, {}, None)
        workload = parse_reference(f"{self.workload}:net")
        asked = earlier_answers.question(settings, workload, local_gpus=local, reachable=lambda: devices)
        assert asked is not None
        return asked


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path / "here")


@pytest.fixture(params=["state", "journal", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return {
        "state": None,
        "journal": str(tmp_path / "all.journal"),
        "sqlite": f"sqlite:///{tmp_path / 'all.db'}",
    }[request.param]


def test_an_answer_is_found_again_as_it_was(asking: Asking, storage: str | None) -> None:
    asked = asking.question(storage=storage)
    assert earlier_answers.find(asked) is None
    earlier_answers.keep(asked, result(), asking.sources)
    assert earlier_answers.find(asking.question(storage=storage)) == result(cached=True)


def test_nothing_is_written_for_a_question_that_was_not_answered(asking: Asking, state_dir: Path) -> None:
    earlier_answers.find(asking.question())
    assert not list(state_dir.rglob("answer-*"))


def test_another_answer_takes_the_place_of_the_one_that_no_longer_holds(
    asking: Asking, storage: str | None
) -> None:
    asked = asking.question(storage=storage)
    earlier_answers.keep(asked, result(), asking.sources)
    asking.neighbour.write_text("width = 16\n")
    assert earlier_answers.find(asked) is None
    earlier_answers.keep(asked, result(wall_seconds=9.0), asking.sources)
    assert earlier_answers.find(asked) == result(wall_seconds=9.0, cached=True)
    opened = open_storage(storage, asked.study)
    with opened.guard():
        (trial,) = optuna.load_study(study_name=asked.study, storage=opened.backend).trials
    opened.close()
    assert trial.value == 20


def test_a_neighbour_that_is_gone_makes_a_new_search(asking: Asking) -> None:
    asked = asking.question()
    earlier_answers.keep(asked, result(), asking.sources)
    asking.neighbour.unlink()
    assert earlier_answers.find(asked) is None


def test_a_copy_of_the_workload_in_another_place_has_the_same_answer(asking: Asking, tmp_path: Path) -> None:
    """As a cluster makes one for every job."""
    storage = str(tmp_path / "all.journal")
    earlier_answers.keep(asking.question(storage=storage), result(), asking.sources)
    copy = Asking(tmp_path / "there")
    assert earlier_answers.find(copy.question(storage=storage)) == result(cached=True)
    copy.neighbour.write_text("width = 16\n")
    assert earlier_answers.find(copy.question(storage=storage)) is None


@pytest.mark.parametrize("file", ["width.json", "../width.json"])
def test_a_file_that_is_read_from_the_current_folder_is_another_one_elsewhere(
    asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    for number, name in enumerate(("one", "two")):
        folder = tmp_path / name / "run"
        folder.mkdir(parents=True)
        (folder / file).write_text(str(number))

    def read() -> str:
        return str((Path.cwd() / file).resolve())

    monkeypatch.chdir(tmp_path / "one" / "run")
    sources = {**asking.sources, read(): content_digest(Path(read())) or ""}
    earlier_answers.keep(asking.question(), result(), sources)
    assert earlier_answers.find(asking.question()) == result(cached=True)
    monkeypatch.chdir(tmp_path / "two" / "run")
    assert earlier_answers.find(asking.question()) is None


def test_another_workload_setting_card_or_version_is_another_question(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = dataclasses.replace(CARD, driver_version="2")
    questions = [
        asking.question(),
        asking.question(gpu="v100-16g"),
        asking.question(precision="bf16"),
        asking.question(margin="5%"),
        asking.question(objective="throughput"),
        asking.question(study="mine"),
        asking.question(local=lambda: ()),
        asking.question(local=lambda: (newer,)),
        asking.question(probe="predict"),
        asking.question(address="head:6379"),
        asking.question(address="head:6379", devices=Devices(num_gpus=2, names=("T4", "A100"))),
        asking.question(address="head:6379", devices=Devices(num_gpus=0)),
    ]
    # The allocator's, a library's, and one that the workload's own code may read.
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TIMM_FUSED_ATTN", "NUM_LAYERS"):
        monkeypatch.setenv(name, "0")
        questions.append(asking.question())
    asking.workload.write_text("import layers  # changed\n")
    questions.append(asking.question())
    assert len({asked.study for asked in questions}) == len(questions)


@pytest.mark.parametrize(
    "name",
    ["SHLVL", "OLDPWD", "TERM", "SSH_TTY", "RAY_JOB_ID", "SLURM_JOB_ID", "A_SERVICE_PORT", "PATH"],
)
def test_variables_of_sessions_and_schedulers_leave_a_question_as_it_is(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = asking.question()
    monkeypatch.setenv(name, "another")
    assert asking.question().study == before.study


@pytest.mark.parametrize(
    ("options", "counts"),
    [({"probe": "predict"}, False), ({"probe": "predict", "keep_env": "MODEL_KEY"}, True), ({}, True)],
)
def test_a_secret_counts_where_the_workload_gets_it_and_is_never_kept(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], counts: bool
) -> None:
    before = asking.question(**options)
    monkeypatch.setenv("MODEL_KEY", "abcdefghijklmnopqrst")
    after = asking.question(**options)
    assert (after.study != before.study) == counts
    assert "abcdefgh" not in json.dumps(after.parts)


@pytest.mark.parametrize(
    ("options", "is_measured"),
    [
        ({}, True),
        ({"probe": "predict"}, False),
        ({"gpu": "a100-40g"}, False),  # the card that is here is too small to stand for it
        ({"gpu": "a100-40g", "local": lambda: ()}, False),
        ({"gpu": "a100-40g", "address": "head:6379"}, True),
        ({"gpu": "a100-40g", "address": "head:6379", "devices": Devices(num_gpus=0)}, False),
    ],
)
def test_a_predicted_answer_depends_on_the_measured_steps_that_scale_it(
    asking: Asking, options: dict[str, Any], is_measured: bool
) -> None:
    before = asking.question(**options)
    step = MeasuredStep(
        workload="net", knobs=Knobs(), mode="train", batch_size=8, card="any", measured_seconds=2.0,
        predicted_seconds=1.0, model="any",
    )  # fmt: skip
    keep(parse_reference(f"{asking.workload}:net"), step)
    assert (asking.question(**options).study == before.study) == is_measured


def test_another_version_of_torch_or_of_any_package_is_another_question(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = asking.question()
    packages = tmp_path / "packages"
    (packages / "timm-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(packages))
    with_timm = asking.question()
    (packages / "timm-1.0.dist-info").rename(packages / "timm-1.1.dist-info")
    newer_timm = asking.question()
    assert len({before.study, with_timm.study, newer_timm.study}) == 3
    assert before.parts["versions"]["torch"].startswith(importlib.metadata.version("torch"))


def test_what_an_installed_package_brings_along_for_itself_is_no_part_of_the_question(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    (packages / "ray" / "thirdparty_files" / "psutil-7.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(packages))
    before = asking.question()
    monkeypatch.syspath_prepend(str(packages / "ray" / "thirdparty_files"))  # as importing Ray does
    assert asking.question().study == before.study


def test_where_and_for_how_long_to_look_is_no_part_of_the_question(asking: Asking) -> None:
    one = asking.question(address="head:6379")
    other = asking.question(address="elsewhere:6379", max_seconds=9, node_wait=1, deadline=9, fresh=True)
    assert one.study == other.study
    assert asking.question(dispatch="inline").study == asking.question().study


def test_every_setting_that_does_not_decide_is_one() -> None:
    assert {field.name for field in dataclasses.fields(TuneSettings)} > earlier_answers._NOT_DECIDING


@pytest.mark.parametrize(
    ("changes", "sources"),
    [
        ({"stopped_by": "--max-trials"}, {}),
        ({"is_settled": False}, {}),
        ({}, None),  # no worker said what it had loaded
    ],
)
def test_half_an_answer_is_not_kept(asking: Asking, changes: dict[str, Any], sources: Any) -> None:
    asked = asking.question()
    earlier_answers.keep(asked, result(**changes), sources)
    assert earlier_answers.find(asked) is None


def test_that_nothing_fits_is_an_answer(asking: Asking) -> None:
    asked = asking.question()
    earlier_answers.keep(asked, result(best=None), asking.sources)
    assert earlier_answers.find(asked) == result(best=None, cached=True)


def test_cards_that_cannot_be_told_are_asked_nothing() -> None:
    def silent() -> tuple[LocalGpu, ...]:
        raise DriverError("the driver is silent")

    settings = resolve_settings({"model": "net", "gpu": "t4"}, {}, None)
    workload = parse_reference("davenet")
    assert (
        earlier_answers.question(settings, workload, local_gpus=silent, reachable=lambda: Devices(num_gpus=0))
        is None
    )


# For real: the one warm child of this process predicts

NET = """
import torch
import layers
from autofit_workers.workload import Workload

net = Workload(
    build_model=lambda: torch.nn.Linear(64, layers.width),
    make_batch=lambda batch_size, device: torch.ones(batch_size, 64, device=device),
    loss=lambda model, batch: model(batch).sum(),
)
"""


def test_a_second_tune_answers_without_a_trace_until_a_module_of_the_workload_changes(
    asking: Asking, tmp_path: Path
) -> None:
    asking.workload.write_text(NET)
    events: list[Event] = []
    options: dict[str, Any] = {"gpu_mem": "1G", "probe": "predict", "conv_algo": "cudnn", "max_batch": 8}
    options |= {"storage": str(tmp_path / "all.journal"), "on_event": events.append}
    model = f"{asking.workload}:net"
    first = autofit.tune(model, **options)
    events.clear()
    again = autofit.tune(model, **options)
    assert [type(event) for event in events] == [TuneStarted, TuneFinished]
    assert again == dataclasses.replace(first, cached=True)
    assert again.to_dict() == {**first.to_dict(), "cached": True}
    assert not autofit.tune(model, fresh=True, **options).cached
    asking.neighbour.write_text("width = 16\n")
    close_predictor()  # a process imports a module once
    changed = autofit.tune(model, **options)
    assert not changed.cached
    assert changed.best is not None
    assert changed.estimate is not None
    assert first.estimate is not None
    assert changed.estimate.breakdown.parameters > first.estimate.breakdown.parameters
    assert autofit.tune(model, **options).cached


# Entries that cannot be read or written


@pytest.mark.parametrize("damage", ["not json\n", '{"op_code": 4, "stu'])
def test_a_damaged_entry_is_ignored_with_a_warning(
    asking: Asking, state_dir: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    asked = asking.question()
    earlier_answers.keep(asked, result(), asking.sources)
    (path,) = (state_dir / "studies").iterdir()
    path.write_text(damage)
    with caplog.at_level(logging.WARNING):
        assert earlier_answers.find(asked) is None
    assert len(caplog.messages) == (damage == "not json\n")


def test_an_entry_of_somebody_else_is_ignored_and_left_alone(
    asking: Asking, storage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asking.question(storage=storage)
    opened = open_storage(storage, asked.study)
    theirs = optuna.create_study(storage=opened.backend, study_name=asked.study)
    theirs.add_trial(optuna.create_trial(value=1.0))
    assert earlier_answers.find(asked) is None
    earlier_answers.keep(asked, result(), asking.sources)
    assert [trial.value for trial in theirs.trials] == [1.0]
    opened.close()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.split(":")[-1].strip() for message in warnings] == [
        "it was not made by autofit",
        "choose another --storage",
    ]


@pytest.mark.parametrize("lost", ["best", "study", "budget"])
def test_an_entry_that_lacks_something_is_ignored_with_a_warning(
    asking: Asking, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    class Lacking(TuneResult):
        def to_dict(self) -> dict[str, Any]:
            return {name: value for name, value in super().to_dict().items() if name != lost}

    asked = asking.question()
    lacking = Lacking(
        **{field.name: getattr(result(), field.name) for field in dataclasses.fields(TuneResult)}
    )
    earlier_answers.keep(asked, lacking, asking.sources)
    assert earlier_answers.find(asked) is None
    assert "cannot be read and is ignored" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asking.question(storage="/proc/nobody/writes/here.journal")
    assert earlier_answers.find(asked) is None
    earlier_answers.keep(asked, result(), asking.sources)
    assert "the answer cannot be kept for the next time" in caplog.text


def test_a_database_that_cannot_be_reached_ends_the_search_before_it_began(asking: Asking) -> None:
    with pytest.raises(StorageError, match="unable to open database file"):
        earlier_answers.find(asking.question(storage="sqlite:////nowhere/at/all.db"))


# Documents


def test_a_result_is_read_back_from_its_json() -> None:
    assert TuneResult.from_dict(json.loads(result().to_json())) == result()


def test_ranks_of_an_earlier_version_are_of_its_one_kind() -> None:
    document = json.loads(result(num_ranks=4).to_json())
    del document["parallel"]
    read = TuneResult.from_dict(document)
    assert (read.parallel, read.samples_per_step) == ("ddp:4", 80)


@pytest.mark.parametrize(
    "document",
    [{}, {"schema": "autofit.error/1"}, {"schema": TUNE_SCHEMA}, {"schema": TUNE_SCHEMA, "best": 3}],
)
def test_a_document_that_is_no_result_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected a document|not a valid TuneResult"):
        TuneResult.from_dict(document)


def test_plain_values_become_what_their_types_say() -> None:
    made = from_plain(FrontierEntry, json.loads(json.dumps(dataclasses.asdict(result().frontier[0]))))
    assert made == result().frontier[0]
    for wrong in ("20", 2.5, True, [20]):
        with pytest.raises(ValueError, match="not a valid Best"):
            from_plain(Best, {**dataclasses.asdict(result().best), "batch_size": wrong})  # type: ignore[arg-type]


def test_an_answer_from_before_an_observed_peak_is_not_given_again(asking: Asking) -> None:
    asked = asking.question()
    earlier_answers.keep(asked, result(), asking.sources)
    workload = parse_reference(f"{asking.workload}:net")
    observations.keep(workload, SEEN)
    assert earlier_answers.find(asking.question()) is None
    observations.forget(SEEN.id)
    assert earlier_answers.find(asking.question()) == result(cached=True)
