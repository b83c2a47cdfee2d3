from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import autofit_workers
from autofit_workers.process.messages import told
from autofit_workers.spec.errors import UnknownNameError
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.pythons import arguments_for
from autofit_workers.spec.workloads.references import (
    SourceChangedError,
    UnknownWorkloadError,
    WorkloadError,
    parse_reference,
)
from autofit_workers.workload.loading import FILE_MODULE_PREFIX, load_attribute

REPOSITORY = Path(autofit_workers.__file__).parents[1]

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test appends to the import path is gone after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


def run_python(code: str, *, cwd: Path) -> str:
    """Runs code in a fresh interpreter that finds `autofit_workers` but not what lies in its folder."""
    result = subprocess.run(
        [sys.executable, *arguments_for(textwrap.dedent(code))],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_built_in_names_need_no_source_and_no_path() -> None:
    assert parse_reference("davenet") == WorkloadRef(kind="builtin", target="davenet")


def test_file_reference_holds_the_absolute_path_the_digest_and_the_files_folder(
    write: Write, tmp_path: Path
) -> None:
    source = write("nets/train.py", "net = 1\n")
    assert parse_reference("nets/train.py:net", cwd=tmp_path) == WorkloadRef(
        kind="file",
        target=f"{source}:net",
        source_sha256=hashlib.sha256(b"net = 1\n").hexdigest(),
        search_path=(str(source.parent),),
    )


def test_import_reference_carries_the_current_folder_and_the_digest(write: Write, tmp_path: Path) -> None:
    write("nets/models.py", "net = 1\n")
    ref = parse_reference("nets.models:net", input_shape=(3, 8), num_classes=2, cwd=tmp_path)
    assert ref == WorkloadRef(
        kind="import",
        target="nets.models:net",
        source_sha256=hashlib.sha256(b"net = 1\n").hexdigest(),
        search_path=(str(tmp_path),),
        input_shape=(3, 8),
        num_classes=2,
    )


def test_import_reference_carries_the_folder_that_the_module_was_found_in(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("library/deep/nets/__init__.py", "net = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "library")
    ref = parse_reference("deep.nets:net", cwd=tmp_path / "elsewhere")
    assert ref.search_path == (str(tmp_path / "elsewhere"), str(tmp_path / "library"))


def test_module_of_an_editable_installation_is_found(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write("src/edited/__init__.py", "")
    write("src/edited/nets.py", "net = 1\n")

    class Finder:
        @staticmethod
        def find_spec(
            name: str, path: object, target: object = None
        ) -> importlib.machinery.ModuleSpec | None:
            return importlib.util.spec_from_file_location(name, source) if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    ref = parse_reference("edited.nets:net", cwd=tmp_path)
    assert ref.source_sha256 == hashlib.sha256(b"net = 1\n").hexdigest()
    assert str(tmp_path / "src") in ref.search_path


def test_parsing_imports_neither_torch_nor_anything_of_the_users(write: Write, tmp_path: Path) -> None:
    write("nets/__init__.py", "raise RuntimeError('imported')")
    write("nets/models.py", "raise RuntimeError('imported')")
    loaded = run_python(
        """
        import sys
        import autofit_workers.spec.workloads.references
        autofit_workers.spec.workloads.references.parse_reference("nets.models:net")
        autofit_workers.spec.workloads.references.parse_reference("nets/models.py:net")
        print([name for name in ("torch", "nets", "cloudpickle") if name in sys.modules])
        """,
        cwd=tmp_path,
    )
    assert loaded == "[]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "davnet",
            ["'davnet'", "Did you mean davenet", "package.module:attribute", "path/file.py:attribute"],
        ),
        ("net", ["Did you mean wavenet or davenet"]),
        ("alexnet-of-mine", ["no built-in workload 'alexnet-of-mine'", "path/file.py:attribute"]),
        ("train.py", ["names a file but nothing in it", "train.py:NAME"]),
        ("nets/train", ["names a file but nothing in it"]),
        ("nets.models", ["names a module but nothing in it", "nets.models:NAME"]),
        ("train.py:", ["does not end in the name of an attribute", "train.py:NAME"]),
        ("train.py:net()", ["does not end in the name of an attribute"]),
        ("trian.py:net", ["there is no file", "trian.py", "Did you mean train.py"]),
        ("notes/todo.txt:net", ["is not a Python file"]),
        ("nets.absent:net", ["there is no module 'nets.absent'", "path/file.py:attribute"]),
        ("not a module:net", ["there is no module 'not a module'"]),
        (":net", ["there is no module ''"]),
    ],
)
def test_what_names_nothing_is_refused_with_the_next_step(
    text: str, expected: list[str], write: Write, tmp_path: Path
) -> None:
    write("train.py", "net = 1\n")
    write("notes/todo.txt", "")
    with pytest.raises(UnknownWorkloadError) as caught:
        parse_reference(text, cwd=tmp_path)
    for fragment in expected:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("text", "input_shape", "num_classes", "expected"),
    [
        ("resnet50", (3, 8, 8), None, "brings its own input"),
        ("resnet50", None, 10, "brings its own input"),
        ("train.py:net", None, 10, "give --input too"),
        ("train.py:net", (), None, "at least 1"),
        ("train.py:net", (3, 0), None, "at least 1"),
        ("train.py:net", (3,), 0, "--classes must be at least 1"),
    ],
)
def test_input_that_cannot_be_used_is_refused(
    text: str, input_shape: tuple[int, ...] | None, num_classes: int | None, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=expected):
        parse_reference(text, input_shape=input_shape, num_classes=num_classes, cwd=tmp_path)


def test_attributes_of_files_and_modules_load_nested_ones_too(write: Write, tmp_path: Path) -> None:
    write("holder_of_nets.py", "class Nets:\n    small = 'small one'\n")
    for text in ("holder_of_nets.py:Nets.small", "holder_of_nets:Nets.small"):
        assert load_attribute(parse_reference(text, cwd=tmp_path)) == "small one"


def test_file_may_import_its_neighbours(write: Write, tmp_path: Path) -> None:
    write("neighbour_of_train.py", "value = 7\n")
    write("train.py", "from neighbour_of_train import value\n")
    assert load_attribute(parse_reference("train.py:value", cwd=tmp_path)) == 7


def test_file_loads_once_and_anew_when_it_was_edited(write: Write, tmp_path: Path) -> None:
    write("train.py", "class A: pass\nvalue = 1\n")
    first = parse_reference("train.py:A", cwd=tmp_path)
    assert load_attribute(first) is load_attribute(first)
    write("train.py", "class A: pass\nvalue = 2\n")
    assert load_attribute(parse_reference("train.py:value", cwd=tmp_path)) == 2


@pytest.mark.parametrize(
    ("source", "cause", "message"),
    [
        ("import there_is_no_such_module", ModuleNotFoundError, "there_is_no_such_module"),
        ("1 / 0", ZeroDivisionError, "division by zero"),
        ("def net(:", SyntaxError, "invalid syntax"),
        ("import sys; sys.exit(2)", SystemExit, "SystemExit"),
    ],
)
@pytest.mark.parametrize("text", ["{}.py:net", "{}:net"])
def test_failing_module_is_a_workload_error_chained_from_its_own(
    text: str, source: str, cause: type[BaseException], message: str, tmp_path: Path
) -> None:
    name = f"failing_{cause.__name__.lower()}"
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    with pytest.raises(WorkloadError, match=message) as caught:
        load_attribute(parse_reference(text.format(name), cwd=tmp_path))
    assert isinstance(caught.value.__cause__, cause)
    assert name in str(caught.value)
    if cause is not SyntaxError:
        frames = []
        trace = caught.value.__cause__.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        assert str(path) in frames
    assert not [key for key in sys.modules if key.startswith(f"{FILE_MODULE_PREFIX}failing_")]


def test_missing_attribute_names_what_is_near(write: Write, tmp_path: Path) -> None:
    write("train.py", "workload = 1\n")
    said = r"has no attribute 'worklaod'\. Did you mean workload"
    with pytest.raises(UnknownNameError, match=said) as caught:
        load_attribute(parse_reference("train.py:worklaod", cwd=tmp_path))
    assert told(caught.value).traceback == ""


@pytest.mark.parametrize(("text", "file"), [("trains.py:Net", "trains.py"), ("trains:Net", "FILE.py")])
def test_a_module_that_needs_a_gpu_may_be_a_script(
    text: str, file: str, write: Write, tmp_path: Path
) -> None:
    write("trains.py", "import torch\nNet = torch.nn.Linear\nmodel = Net(2, 2).cuda()\n")
    with pytest.raises(WorkloadError, match="failed with AssertionError: Torch not compiled") as caught:
        load_attribute(parse_reference(text, cwd=tmp_path))
    assert f'`if __name__ == "__main__":`, or run the file as it is with --script {file}' in str(caught.value)
    assert "trains.py" in told(caught.value).traceback


@pytest.mark.parametrize("text", ["changing.py:net", "changing:net"])
def test_worker_refuses_a_source_that_differs_or_is_missing(text: str, write: Write, tmp_path: Path) -> None:
    path = write("changing.py", "net = 1\n")
    ref = parse_reference(text, cwd=tmp_path)
    path.write_text("net = 2\n")
    with pytest.raises(SourceChangedError, match="differs from the file that the search began with"):
        load_attribute(ref)
    path.unlink()
    with pytest.raises(SourceChangedError, match="is not on this worker"):
        load_attribute(ref)


def test_the_users_folder_comes_last_and_hides_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    write("colorsys.py", "raise RuntimeError('hides the standard library')")
    write("train.py", "import colorsys\nwhite = colorsys.rgb_to_hsv(1, 1, 1)\n")
    before = [*sys.path]
    for _ in range(2):
        assert load_attribute(parse_reference("train.py:white", cwd=tmp_path)) == (0.0, 0.0, 1)
    assert sys.path == [*before, str(tmp_path)]


def test_folder_with_its_own_torch_and_workers_gets_the_real_ones(write: Write, tmp_path: Path) -> None:
    write("torch.py", "raise RuntimeError('hides torch')")
    write("workers/__init__.py", "raise RuntimeError('hides workers')")
    write(
        "train.py",
        """
        import torch
        from autofit_workers.workload import Workload
        net = Workload(build_model=lambda: torch.nn.Linear(2, 2), make_batch=None, loss=None)
        """,
    )
    loaded = run_python(
        """
        from autofit_workers.workload import Workload
        print(type(Workload.load("train.py:net").build_model()).__name__)
        """,
        cwd=tmp_path,
    )
    assert loaded == "Linear"


def test_a_module_of_ours_is_found_by_the_name_it_had_in_settings_of_0_2(tmp_path: Path) -> None:
    found = parse_reference("workers.workload.models.davenet:davenet", cwd=tmp_path)
    assert found == parse_reference("autofit_workers.workload.models.davenet:davenet", cwd=tmp_path)
    with pytest.raises(UnknownWorkloadError, match=r"no module 'workers\.nets'"):
        parse_reference("workers.nets:net", cwd=tmp_path)


def test_a_users_own_module_of_that_name_comes_first(write: Write, tmp_path: Path) -> None:
    write("workers/workload/models/davenet.py", "davenet = 1")
    found = parse_reference("workers.workload.models.davenet:davenet", cwd=tmp_path)
    assert found.target == "workers.workload.models.davenet:davenet"
