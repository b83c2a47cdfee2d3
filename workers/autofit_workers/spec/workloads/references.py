"""Makes references from the texts that name workloads, without importing user code.

`autofit_workers.workload.loading` loads the object that a reference names.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from autofit_workers.spec.documents import read_file, resolved
from autofit_workers.spec.former import present_module
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.workloads.builtins import BUILTINS
from autofit_workers.spec.workloads.libraries import LIBRARIES, Library, library_of
from autofit_workers.spec.workloads.library_arguments import split_arguments
from autofit_workers.spec.workloads.tasks import TASK_NAMES

_MOST_CHARACTERS = 200  # of a user's text that a message repeats
_FORMS = (
    f"give a built-in name, {', '.join(each.example for each in LIBRARIES.values())}, "
    "package.module:attribute or path/file.py:attribute"
)


class WorkloadError(Exception):
    """A workload cannot be loaded or is invalid; the message says what the user can do."""


class UnknownWorkloadError(WorkloadError):
    """A reference names no built-in, no module and no file."""


class SourceChangedError(WorkloadError):
    """A worker's copy of a workload's source differs from the one that its reference was made for."""


def parse_reference(
    text: str,
    *,
    input_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    task: str | None = None,
    cwd: str | Path | None = None,
) -> WorkloadRef:
    """Reference of the workload that a user's text names; imports no user code and no torch.

    Args:
        text: name of a built-in workload, a library's model such as `timm:NAME`, `package.module:attribute`
            or `path/file.py:attribute`.
        input_shape: shape of one sample, if the attribute is an `nn.Module`; for a library's model the shape
            of an image, in place of the model's own.
        num_classes: number of classes of the labels of such samples.
        task: task that a library's model is trained for; None for the one that its configuration names.
        cwd: folder that relative paths start at and modules are searched in last; the current folder
            unless given.

    Raises:
        UnknownWorkloadError: the text names nothing, or no attribute.
        WorkloadError: the shape, the number of classes or the task cannot be used.
    """
    _check_sample(text, input_shape, num_classes, task)
    if text in BUILTINS:
        return WorkloadRef(kind="builtin", target=text)
    try:
        return _reference_to(
            text,
            resolved(cwd or "."),
            input_shape=input_shape,
            num_classes=num_classes,
            task=task,
        )
    except OSError as error:
        raise UnknownWorkloadError(f"{text[:_MOST_CHARACTERS]!r} cannot be read: {error.strerror}") from error


def _reference_to(
    text: str,
    folder: Path,
    *,
    input_shape: tuple[int, ...] | None,
    num_classes: int | None,
    task: str | None,
) -> WorkloadRef:
    """Makes the reference for a text that names no built-in workload.

    Args:
        text: name of a library's model, of a module's attribute, or of a file's attribute.
        folder: folder that relative paths start at.
        input_shape, num_classes, task: as in `parse_reference`.

    Raises:
        OSError: a file cannot be read.
    """
    library = library_of(text)
    if library is not None:
        configuration = _configuration_file(text, folder) if library.takes_files else None
        return WorkloadRef(
            kind="library",
            target=text if configuration is None else f"{library.prefix}:{configuration}",
            source_sha256=None if configuration is None else sha256_of(read_file(configuration)),
            input_shape=input_shape,
            num_classes=num_classes,
            task=task,
        )
    location, colon, attribute = text.rpartition(":")
    sizes = [name for name in BUILTINS if name.partition(":")[0] == location]
    if sizes:
        raise UnknownWorkloadError(f"there is no {text}: choose from {', '.join(sizes)}")
    if not colon:
        raise UnknownWorkloadError(_without_attribute(text))
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise UnknownWorkloadError(
            f"{text!r} does not end in the name of an attribute: write {location}:NAME"
        )
    is_file = location.endswith(".py") or "/" in location
    kind, target, source, search_path = (_file if is_file else _module)(location, folder)
    return WorkloadRef(
        kind=kind,
        target=f"{target}:{attribute}",
        source_sha256=sha256_of(read_file(source)),
        input_shape=input_shape,
        num_classes=num_classes,
        search_path=search_path,
    )


def find_source(module: str, folders: Iterable[str]) -> Path | None:
    """File that `import module` would run, found without importing packages; None if not found."""
    *packages, name = module.split(".")
    for root in _import_roots(packages[0] if packages else name, folders):
        package = root.joinpath(*packages)
        for candidate in (package / name / "__init__.py", package / f"{name}.py"):
            if candidate.is_file():
                return candidate.absolute()
    return None


def _import_roots(top_level: str, folders: Iterable[str]) -> Iterator[Path]:
    yield from map(Path, (*sys.path, *folders))
    # Editable installations may have a finder of their own instead of a folder in sys.path.
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(top_level, None) if find_spec else None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            source = Path(spec.origin)
            yield source.parents[1] if source.name == "__init__.py" else source.parent


def _configuration_file(text: str, folder: Path) -> Path | None:
    """Configuration file that a reference to a library's model names; None if it gives a model's name.

    Args:
        text: the reference, such as `hf:folder/config.json` or `hf:folder`.
        folder: folder that relative paths start at.

    Raises:
        UnknownWorkloadError: the path exists but is no configuration file, nor a folder with one.
    """
    path = (folder / text.partition(":")[2]).absolute()
    names_file = path.suffix == ".json" or ("/" in text and path.exists() and not path.is_dir())
    candidates = [path] if names_file else [path / "config.json"]
    for candidate in candidates:
        if candidate.is_file() and candidate.suffix == ".json":
            return candidate
        if candidate.exists():  # a folder, a pipe, a device, weights
            raise UnknownWorkloadError(
                f"{candidate} is no configuration file: give a config.json, or its folder"
            )
    return None


def _check_sample(
    text: str, input_shape: tuple[int, ...] | None, num_classes: int | None, task: str | None
) -> None:
    """Raises `WorkloadError` if options for samples do not go with the named workload."""
    library = library_of(text)
    if task is not None:
        _check_task(text, task, library)
    given = {"input": input_shape, "classes": num_classes}
    said = [name for name, value in given.items() if value is not None]
    if library is not None:
        misplaced = [f"--{name}" for name in said if name not in library.options]
        if misplaced:
            raise WorkloadError(f"{' and '.join(misplaced)} cannot be used with {text}: leave them out")
        if input_shape is not None and len(input_shape) != 3:
            raise WorkloadError(f"--input of {text} must be the shape of an image, such as 3x224x224")
        _check_arguments(text, library, said)
    elif text in BUILTINS and said:
        raise WorkloadError(f"{text} brings its own input: leave out --input and --classes")
    elif input_shape is None and num_classes is not None:
        raise WorkloadError("--classes needs the shape of one sample: give --input too, such as 3x224x224")
    if input_shape is not None and (not input_shape or min(input_shape) < 1):
        raise WorkloadError(f"every dimension of --input must be at least 1, got {input_shape}")
    if num_classes is not None and num_classes < 1:
        raise WorkloadError(f"--classes must be at least 1, got {num_classes}")


def _check_task(text: str, task: str, library: Library | None) -> None:
    if library is None or not library.takes_task:
        raise WorkloadError(f"--task is for models of transformers, which {text} is not: leave it out")
    if task not in TASK_NAMES:
        raise WorkloadError(f"--task {task} is none of transformers: choose from {', '.join(TASK_NAMES)}")


def _check_arguments(text: str, library: Library, said: Iterable[str]) -> None:
    """Checks the arguments in a reference to a library's model, such as `timm:NAME?img_size=384`.

    Args:
        text: the reference.
        library: the library.
        said: names of the options (`input`, `classes`) that the user gave too.

    Raises:
        WorkloadError: arguments cannot be read, or one means the same as an option that was given.
    """
    if library.arguments is None:
        return
    try:
        _, arguments = split_arguments(text)
    except ValueError as error:
        raise WorkloadError(f"{text[:_MOST_CHARACTERS]!r} cannot be read: {error}") from None
    for option in said:
        twice = [name for name in library.arguments.get(option, ()) if name in arguments]
        if twice:
            raise WorkloadError(f"{text} says {twice[0]}, and so does --{option}: leave one of them out")


def _without_attribute(text: str) -> str:
    if text.endswith(".py") or "/" in text:
        return (
            f"{text!r} names a file but nothing in it: write {text}:NAME, where NAME is a Workload in it, or "
            f"run a training script as it is with --script {text}"
        )
    near = suggestion(text, BUILTINS)
    if "." in text and not near:
        return f"{text!r} names a module but nothing in it: write {text}:NAME, where NAME is a Workload in it"
    return f"there is no built-in workload {text!r}.{near} Otherwise {_FORMS}"


def _file(location: str, folder: Path) -> tuple[str, str, Path, tuple[str, ...]]:
    path = resolved(folder / location)
    if not path.is_file():
        siblings = [entry.name for entry in path.parent.glob("*.py")]
        raise UnknownWorkloadError(
            f"there is no file {path}.{suggestion(path.name, siblings)} Check the path"
        )
    if path.suffix != ".py":
        raise UnknownWorkloadError(f"{path} is not a Python file: {_FORMS}")
    return "file", str(path), path, (str(path.parent),)


def _module(location: str, folder: Path) -> tuple[str, str, Path, tuple[str, ...]]:
    """Reference's kind, target, source file and import folders for a module that a user names."""
    is_name = all(map(str.isidentifier, location.split(".")))
    source = find_source(location, [str(folder)]) if is_name else None
    present = present_module(location)  # of a name in settings and jobs of 0.2
    if source is None and is_name and present != location and find_source(present, []) is not None:
        return _module(present, folder)
    if source is None:
        raise UnknownWorkloadError(
            f"there is no module {location!r}, neither on Python's import path nor in {folder}: "
            "install it, change to its folder, or give path/file.py:attribute"
        )
    # Only this process may have the folder of the module on its path.
    depth = location.count(".") + (source.name == "__init__.py")
    root = source.parents[depth]
    return "import", location, source, tuple(dict.fromkeys((str(folder), str(root))))


def sha256_of(data: bytes) -> str:
    """SHA-256 of a source, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def names_like(name: str, known: Iterable[str]) -> list[str]:
    """Known names that are spelt like `name`; if there are none, known names that contain it."""
    names = list(known)
    return difflib.get_close_matches(name, names, n=3) or [n for n in names if name and name in n]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Sentence with a leading space that suggests known names like `name`; empty if there are none."""
    near = names_like(name, known)
    return f" Did you mean {' or '.join(near)}?" if near else ""
