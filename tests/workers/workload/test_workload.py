from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import importlib
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit_workers.spec.errors import InvalidTrialError, NoBatchKindsError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import ALONE, WORST, Setup
from autofit_workers.spec.workloads.references import (
    SourceChangedError,
    UnknownWorkloadError,
    WorkloadError,
    parse_reference,
)
from autofit_workers.tracing.values.made_up import MadeUpFloat
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.workload import (
    CloudpickleMissingError,
    InvalidBatchError,
    InvalidLossError,
    Workload,
    check_batch,
    check_loss,
    resolve,
)

CPU = torch.device("cpu")

SOURCE = """
from dataclasses import dataclass

import torch
from torch import nn

from autofit_workers.workload import Workload


def make_batch(batch_size, device):
    return torch.ones(batch_size, 4, device=device)


def loss(model, batch):
    return model(batch).mean()


workload = Workload(build_model=lambda: nn.Linear(4, 2), make_batch=make_batch, loss=loss, optimizer="adam")


def make_workload():
    return workload


def make_module():
    return nn.Linear(4, 2)


def needs_argument(width):
    return workload


def raises():
    raise KeyError("of the user")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 5)

    def forward(self, x):
        return self.linear(x.flatten(1))


class Pair(Net):
    def forward(self, x):
        return x, x


built = Net()
number = 3
"""


@pytest.fixture(autouse=True)
def import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test appends to the import path is gone after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def train(tmp_path: Path) -> str:
    """The path of a file that defines workloads and modules."""
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return str(path)


def local_workload(**fields: Any) -> Workload:
    scale = 2.0

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = model(batch).mean()
        return scale * mean

    return Workload(
        **{
            "build_model": lambda: nn.Linear(4, 2),
            "make_batch": lambda batch_size, device: torch.ones(batch_size, 4, device=device),
            "loss": loss,
            **fields,
        }
    )


def run_step(workload: Workload, batch_size: int = 3) -> float:
    model = workload.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    batch = workload.make_batch(batch_size, CPU)
    check_batch(batch, batch_size)
    loss = workload.loss(model, batch)
    check_loss(loss)
    return loss.item()


def test_unknown_mode_and_optimizer_are_refused_with_the_known_ones() -> None:
    with pytest.raises(WorkloadError, match="train, infer, generate; got 'eval'"):
        local_workload(mode="eval")
    with pytest.raises(WorkloadError, match=r"sgd-momentum.*function of the parameters; got 'lamb'"):
        local_workload(optimizer="lamb")


def test_invalid_workload_in_a_file_is_told_in_its_own_words(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from autofit_workers.workload import Workload\n"
        "Workload(build_model=1, make_batch=1, loss=1, mode='eval')"
    )
    with pytest.raises(WorkloadError, match=r"one of train, infer, generate; got 'eval'$"):
        Workload.load(f"{path}:workload")


def test_optimizer_may_be_a_function() -> None:
    workload = local_workload(optimizer=torch.optim.Adamax)
    assert workload.optimizer is torch.optim.Adamax


def test_built_in_loads_by_name_and_refers_to_itself_by_it() -> None:
    workload = Workload.load("davenet-audio")
    assert (workload.name, workload.optimizer, workload.mode) == ("davenet-audio", "sgd-momentum", "train")
    assert workload.reference() == WorkloadRef(kind="builtin", target="davenet-audio")


@pytest.mark.parametrize("attribute", ["workload", "make_workload"])
def test_workload_or_a_function_that_returns_one_loads_from_a_file(attribute: str, train: str) -> None:
    workload = Workload.load(f"{train}:{attribute}")
    assert run_step(workload) == pytest.approx(0.5 * 4 + 0.5)
    assert workload.optimizer == "adam"
    assert workload.name == f"train.py:{attribute}"
    assert workload.reference() == parse_reference(f"{train}:{attribute}")


def test_workload_loads_from_a_reference_that_crossed_as_json(train: str) -> None:
    ref = parse_reference(f"{train}:Net", input_shape=(3, 4), num_classes=5)
    crossed = WorkloadRef.from_dict({**dataclasses.asdict(ref), "input_shape": [3, 4], "search_path": []})
    assert run_step(Workload.load(crossed)) > 0
    with pytest.raises(WorkloadError, match="has its own input_shape"):
        Workload.load(ref, input_shape=(3, 4))


@pytest.mark.parametrize("attribute", ["Net", "make_module"])
def test_module_with_input_and_classes_is_trained_with_cross_entropy(attribute: str, train: str) -> None:
    shape = (3, 4) if attribute == "Net" else (4,)
    workload = Workload.load(f"{train}:{attribute}", input_shape=shape, num_classes=2)
    samples, labels = workload.make_batch(6, CPU)
    assert samples.shape == (6, *shape)
    assert labels.shape == (6,)
    assert set(labels.tolist()) <= {0, 1}
    model = workload.build_model()
    expected = nn.functional.cross_entropy(model(samples), labels)
    torch.testing.assert_close(workload.loss(model, (samples, labels)), expected)


def test_module_without_classes_is_trained_on_the_mean_of_its_output(train: str) -> None:
    workload = Workload.load(f"{train}:Net", input_shape=(3, 4))
    model = workload.build_model()
    batch = workload.make_batch(2, CPU)
    torch.testing.assert_close(workload.loss(model, batch), model(batch[0]).mean())


def test_module_whose_output_is_no_tensor_needs_a_loss_of_its_own(train: str) -> None:
    workload = Workload.load(f"{train}:Pair", input_shape=(3, 4))
    with pytest.raises(InvalidLossError, match="Pair returns tuple instead of a tensor"):
        workload.loss(workload.build_model(), workload.make_batch(2, CPU))


@pytest.mark.parametrize(
    ("attribute", "input_shape", "expected"),
    [
        ("Net", None, "--input 3x224x224.*--classes"),
        ("make_module", None, "--input 3x224x224.*--classes"),
        ("built", None, "already built"),
        ("built", (3, 4), "already built"),
        ("number", None, "gives int: name a Workload"),
        ("workload", (4,), "makes its own batches: leave out --input"),
    ],
)
def test_attribute_of_another_kind_is_refused_with_the_next_step(
    attribute: str, input_shape: tuple[int, ...] | None, expected: str, train: str
) -> None:
    with pytest.raises(WorkloadError, match=expected):
        Workload.load(f"{train}:{attribute}", input_shape=input_shape)


def test_function_that_returns_no_module_is_refused_when_it_is_built(train: str) -> None:
    workload = Workload.load(f"{train}:make_workload", input_shape=(4,))
    with pytest.raises(WorkloadError, match=r"returned Workload.*leave out --input"):
        workload.build_model()


@pytest.mark.parametrize(("attribute", "cause"), [("raises", KeyError), ("needs_argument", TypeError)])
def test_function_that_fails_is_chained_from_its_own_error(
    attribute: str, cause: type[Exception], train: str
) -> None:
    with pytest.raises(WorkloadError, match=rf"calling train.py:{attribute}\(\) failed with") as caught:
        Workload.load(f"{train}:{attribute}")
    assert isinstance(caught.value.__cause__, cause)


def test_function_that_raises_what_has_no_text_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text(
        "class Mute(Exception):\n    def __str__(self):\n        raise KeyError\n\n"
        "def make():\n    raise Mute\n"
    )
    with pytest.raises(WorkloadError, match=r"failed with Mute: \(its text cannot be made: KeyError\); its"):
        Workload.load(f"{tmp_path / 'mute.py'}:make")


def test_local_workload_crosses_by_value() -> None:
    workload = local_workload(name="mine")
    ref = workload.reference()
    assert (ref.kind, ref.name) == ("pickle", "mine")
    assert ref.source_sha256 == hashlib.sha256(base64.b64decode(ref.payload_base64 or "")).hexdigest()
    arrived = resolve(ref)
    assert arrived.loss is not workload.loss
    assert run_step(arrived) == run_step(workload)
    assert arrived.reference() is ref


def test_functions_of_a_script_cross_by_value() -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(SOURCE, script)  # as `python script.py` does
    ref = script["workload"].reference()
    assert run_step(resolve(ref)) == run_step(script["workload"])
    assert str(Path.cwd()) in ref.search_path


def test_modules_from_folders_that_a_program_added_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook adds the folder of the code beside it, while another folder is the current one."""
    (tmp_path / "models_of_mine.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    workload = importlib.import_module("models_of_mine").workload
    ref = workload.reference()
    assert str(tmp_path) in ref.search_path
    assert not [folder for folder in ref.search_path if folder.endswith("-packages")]  # every Python has them
    del sys.modules["models_of_mine"]  # another process would not have it, nor its folder
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert run_step(resolve(ref)) == run_step(workload)


def test_changed_copy_of_a_loaded_workload_crosses_by_value_with_its_file(train: str) -> None:
    changed = dataclasses.replace(Workload.load(f"{train}:workload"), optimizer="sgd")
    ref = changed.reference()
    assert ref.kind == "pickle"
    for name in [name for name in sys.modules if name.startswith("_autofit_file_train_")]:
        del sys.modules[name]  # another process would not have it
    arrived = resolve(ref)
    assert arrived.optimizer == "sgd"
    assert run_step(arrived) == pytest.approx(0.5 * 4 + 0.5)


def test_missing_cloudpickle_is_named_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = local_workload().reference()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    for crossing in (local_workload().reference, lambda: resolve(ref)):
        with pytest.raises(CloudpickleMissingError, match="pip install cloudpickle"):
            crossing()


def test_what_cannot_be_pickled_is_refused_with_the_next_step() -> None:
    lock = threading.Lock()
    with pytest.raises(WorkloadError, match=r"cannot be sent to a worker.*lock.*define it in a file"):
        local_workload(build_model=lambda: lock).reference()


def test_pickle_that_changed_on_its_way_is_refused() -> None:
    ref = local_workload().reference()
    with pytest.raises(SourceChangedError, match="do not match their digest"):
        resolve(dataclasses.replace(ref, payload_base64=base64.b64encode(b"other").decode()))


def test_pickle_of_something_else_is_refused() -> None:
    payload = pickle.dumps(3)
    ref = WorkloadRef(
        kind="pickle",
        target="three",
        source_sha256=hashlib.sha256(payload).hexdigest(),
        payload_base64=base64.b64encode(payload).decode(),
    )
    with pytest.raises(WorkloadError, match="three gives int"):
        resolve(ref)


def test_worker_of_another_version_says_so() -> None:
    with pytest.raises(UnknownWorkloadError, match="knows no workload 'alexnet': install the release"):
        resolve(WorkloadRef(kind="builtin", target="alexnet"))
    with pytest.raises(WorkloadError, match="no reference of kind 'timm': install the release"):
        resolve(WorkloadRef(kind="timm", target="resnet50"))


def test_loading_leaves_the_users_own_object_as_it_is(train: str) -> None:
    loaded = Workload.load(f"{train}:workload")
    assert loaded.reference().kind == "file"
    own = loaded.loss.__globals__["workload"]
    assert own.name == ""
    assert own._reference is None


def test_knobs_and_mode_replace_the_workloads_own_where_they_are_given() -> None:
    workload = local_workload(optimizer="adam")
    assert with_overrides(workload, Knobs()) == workload
    changed = with_overrides(workload, Knobs(optimizer="rmsprop"), Setup(mode="infer"))
    assert (changed.optimizer, changed.mode) == ("rmsprop", "infer")
    assert (workload.optimizer, workload.mode) == ("adam", "train")


@dataclasses.dataclass(slots=True)
class SlottedBatch:
    images: torch.Tensor


class AttributeBatch:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.parts = [tensor]
        self.itself = self


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: (torch.ones(3), [t]),
        lambda t: {"images": {"left": t}},
        lambda t: collections.UserDict(input_ids=t),
        SlottedBatch,
        AttributeBatch,
        lambda t: (None, "text", 8, t),
    ],
)
@pytest.mark.parametrize("shape", [(8, 3), (5, 8)])
def test_batch_size_is_found_in_any_dimension_of_any_tensor(wrap: Any, shape: tuple[int, ...]) -> None:
    check_batch(wrap(torch.ones(shape)), 8)
    with pytest.raises(InvalidBatchError, match="ignores the batch size: asked for 9, got shapes"):
        check_batch(wrap(torch.ones(shape)), 9)


def test_batch_that_ignores_its_size_is_named_by_its_shapes_and_makes_the_trial_invalid() -> None:
    batch = [torch.ones(4, 3), torch.ones(4), torch.ones(1), torch.ones(2), torch.ones(5)]
    with pytest.raises(
        InvalidTrialError, match=r"asked for 8, got shapes \(4, 3\), \(4,\), \(1,\), \(2,\), …"
    ):
        check_batch(batch, 8)


def test_a_batch_that_is_all_there_is_counts_as_one_sample() -> None:
    said = check_batch([torch.ones(7, 3), torch.ones(7, 7)], 1)
    assert said is not None
    assert said.startswith("make_batch makes (7, 3), (7, 7) where 1 sample is asked for")
    assert check_batch(torch.ones(1, 3), 1) is None


def test_batch_without_tensors_is_refused() -> None:
    with pytest.raises(InvalidBatchError, match="returned list without any tensor"):
        check_batch([8, "text", Workload], 8)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_loss_of_one_element_is_accepted_as_pytorch_does(shape: tuple[int, ...]) -> None:
    loss = torch.ones(shape, requires_grad=True)
    check_loss(loss)
    loss.backward()


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (0.5, r"scalar tensor, got a number: return the tensor, without \.item\(\)"),
        (MadeUpFloat(0.5), "got a number"),
        ([torch.ones(())], "scalar tensor, got list: return the loss itself"),
        (torch.ones(8, 2, requires_grad=True), r"got shape \(8, 2\): take its mean"),
        (torch.ones(()), "depends on no parameter"),
    ],
)
def test_loss_that_cannot_be_differentiated_is_refused(loss: object, expected: str) -> None:
    with pytest.raises(InvalidLossError, match=expected):
        check_loss(loss)


def _of_a_kind(batch_size: int, device: torch.device, kind: str = "typical") -> torch.Tensor:
    return torch.zeros(batch_size, {"typical": 2, "worst": 9}[kind], device=device)


def _batch_shape(workload: Workload, setup: Setup = ALONE) -> tuple[int, ...]:
    batch = with_overrides(workload, Knobs(), setup).make_batch(3, torch.device("cpu"))
    return tuple(batch.shape)


def test_a_batch_is_typical_unless_the_worst_is_asked_for() -> None:
    workload = local_workload(make_batch=_of_a_kind)
    assert workload.has_batch_kinds
    assert _batch_shape(workload) == (3, 2)
    assert _batch_shape(workload, Setup(batch_kind=WORST)) == (3, 9)


def test_only_a_parameter_of_that_name_is_a_kind() -> None:
    assert not local_workload(make_batch=lambda batch_size, device, **options: options).has_batch_kinds
    assert not local_workload(make_batch=print).has_batch_kinds
    one_kind = local_workload(name="one kind")
    with pytest.raises(NoBatchKindsError, match="one kind makes one kind of batch; let its make_batch take"):
        with_overrides(one_kind, Knobs(), Setup(batch_kind=WORST))
