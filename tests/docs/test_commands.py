"""The site's commands are run, and print what its pages show; their documents are as their schemas say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from autofit.cli import main
from tests.commands import Finished
from tests.docs.pages import PAGES, ROOT, Command, blocks, commands_of, missing_line

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]

# Those are run in tests/install/test_readme.py, in two kinds of installation.
_OF_README = {command.text for command in commands_of(ROOT / "README.md")}
_BY_TEXT: dict[str, list[Command]] = defaultdict(list)
for _page in sorted(PAGES.glob("*.md")):
    for _command in commands_of(_page):
        if _command.is_run and (_command.shown is not None or _command.text not in _OF_README):
            _BY_TEXT[_command.text].append(_command)
# A question of each kind whose document has a schema.
_ASKED = (
    "tune --model davenet --gpu-mem 16G",
    "estimate gpt2 --batch-size 8 --gpu rtx-3090",
    "estimate --script growing.py --gpu rtx-3060",
    "check gpt2 --batch-size 15 --gpu rtx-3060",
    "check resnet50 --batch-size 128 --gpu rtx-3090",
    "cards resnet50 --batch-size 64 --precision amp-bf16 --gpu t4,rtx-3090",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the files that the commands name; beside it the state that all of them share."""
    folder = tmp_path_factory.mktemp("user") / "project"
    shutil.copytree(ROOT / "configs" / "examples", folder)
    return folder


@contextmanager
def _in_folder(folder: Path, variables: tuple[str, ...] = ()) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "80")
        patch.setenv("AUTOFIT_STATE_DIR", str(folder.parent / "state"))
        for variable in variables:
            patch.setenv(*variable.split("=", 1))
        yield


def _run(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], variables: tuple[str, ...] = ()
) -> Finished:
    capsys.readouterr()
    with _in_folder(folder, variables):
        code = main(list(words))
    return Finished(code, *capsys.readouterr())


# A profile that one command writes is read by those after it, so they stay in the pages' order.
@pytest.mark.parametrize("text", _BY_TEXT)
def test_the_command_prints_what_the_pages_show(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _BY_TEXT[text]
    done = _run(commands[0].words, folder, capsys, commands[0].variables)
    shows = [command for command in commands if command.shown is not None]
    # What does not fit is told with 3, what is unsure with 6: pages show that too.
    assert done.code in ((0, 3, 6) if shows else (0,)), done.err
    printed = [line.rstrip() for line in done.out.replace(f"{folder}/", "").splitlines()]
    missing = {command.page: missing_line(command.shown or (), printed) for command in shows}
    assert not any(missing.values()), (missing, done.out)


def test_the_python_page_can_be_typed(folder: Path) -> None:
    text = (PAGES / "python.md").read_text(encoding="utf-8")
    first, second, *_ = [block for language, block in blocks(text) if language == "python"]
    names: dict[str, Any] = {}
    with _in_folder(folder):
        exec(first + second, names)
    assert names["result"].best.batch_size > 0
    assert names["verdict"].verdict


def _strict(schema: Any) -> Any:
    """Copy of a schema in which an object has no other keys than it says."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: _strict(value) for key, value in schema.items()}
    return (
        {**copy, "additionalProperties": False} if "properties" in schema and "required" in schema else copy
    )


@pytest.mark.parametrize("question", _ASKED)
def test_the_document_is_as_its_schema_says(
    question: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(_run((*shlex.split(question), "--json"), folder, capsys).out)
    schemas = {
        path.name: _strict(json.loads(path.read_text(encoding="utf-8")))
        for path in (PAGES / "schemas").glob("*.json")
    }
    registry: Registry[Any] = Registry().with_resources(
        [(name, Resource.from_contents(schema)) for name, schema in schemas.items()]
    )
    name = re.sub("/", "-", document["schema"]) + ".json"
    jsonschema.Draft202012Validator(schemas[name], registry=registry).validate(document)
