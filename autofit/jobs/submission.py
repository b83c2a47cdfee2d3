"""Builds jobs from the options of `autofit submit`: spec, name, and the driver's command."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.identity import fingerprint
from autofit.jobs.records import JobRecord, JobSpec
from autofit.settings.options import OPTIONS
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer
from autofit_workers.spec.documents import read_file, resolved
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.shown import has_secret
from autofit_workers.spec.workloads.libraries import library_of

STORAGE_VARIABLE = "AUTOFIT_STORAGE"
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # variables that Ray's own command line reads

_FRESH = "fresh"
_MODEL = "model"
# The folder in which the driver starts is not searched, as by the option `-P`, which Python 3.10 lacks.
_INSTALLED = (
    "import sys; sys.path[:] = filter(None, sys.path); from autofit.cli import main; sys.exit(main())"
)
# Ray puts the job's folder in front of the import path; an `autofit/` in it
# must not hide this package.
_ASIDE = (
    "import os, sys; here = os.getcwd(); sys.path[:] = [p for p in sys.path if os.path.realpath(p) != here]; "
    "from autofit.cli import main; sys.exit(main())"
)


# ── contents of the job ─────────────────────────────────────────────────────────────────────


def job_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Options that a job keeps, by name, as command-line text.

    Args:
        given: options of the user by name, from the command line, environment or a file.
    """
    return {option: _as_text(option, value) for option, value in given.items() if OPTIONS[option].of_job}


def _as_text(option: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={amount}" for name, amount in value.items())
    if isinstance(value, list | tuple):
        return ("x" if option == "input" else ",").join(map(str, value))
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Reference to a job's workload, as the cluster can resolve it, with the digest of its file.

    Attributes:
        model: reference to the workload, such as `train.py:workload`, relative to the job's working directory
            on the cluster.
        source_sha256: SHA-256 of the workload's file; None if this machine cannot read it.
    """

    model: str
    source_sha256: str | None = None


def locate(settings: TuneSettings, working_dir: str | None) -> Code:
    """Reference to the workload by which the driver on the cluster will find it.

    Args:
        working_dir: folder with the code on this machine, or the URI of a zip file; None if the nodes have
            the code already.

    Raises:
        UsageError: there is no built-in model of that name, or the file cannot be read or would not be on
            the cluster.
    """
    try:
        return _located(settings, working_dir)
    except OSError as error:
        raise UsageError(
            f"the workload {settings.model} cannot be read ({error.strerror}): name a file that can be read"
        ) from error


def _located(settings: TuneSettings, working_dir: str | None) -> Code:
    """Reference by which the driver finds the workload; raises `UsageError` for what jobs cannot run."""
    if settings.script is not None:
        raise UsageError(
            "a script cannot be submitted as a job: run `autofit tune --script … --address ADDRESS`, or give "
            "a workload with --model"
        )
    model = settings.model
    location, _, attribute = model.rpartition(":")
    if not _is_file(model):
        if library_of(model) is not None:
            return _of_library(model, refer(model, settings), working_dir)
        if ":" not in model:
            return Code(model=refer(model, settings).target)
        return Code(model=model)  # a module may be installed on the cluster only
    if working_dir is not None and "://" in working_dir:
        return Code(model=model)
    if working_dir is None:
        path = Path(location)
        if not path.is_absolute():
            raise _only_here(location)
        return Code(model=model, source_sha256=_sha256(path) if path.is_file() else None)
    root = resolved_folder(working_dir)
    candidates = [resolved(folder / location) for folder in (root, Path())]
    inside = [path for path in candidates if path.is_file() and path.is_relative_to(root)]
    if not inside:
        refer(str(root / location) + f":{attribute}")  # raises an error that names similar names
        raise _outside(location, root)
    return Code(
        model=f"{inside[0].relative_to(root).as_posix()}:{attribute}", source_sha256=_sha256(inside[0])
    )


def _of_library(model: str, ref: WorkloadRef, working_dir: str | None) -> Code:
    """Reference to a library's model; if that is a local configuration file, by its path on the cluster.

    Args:
        ref: resolved reference.
        working_dir: see `locate`.
    """
    if ref.source_sha256 is None:
        return Code(model=ref.target)
    prefix, _, name = model.partition(":")
    path = resolved(ref.target.partition(":")[2])
    if working_dir is None:
        if not Path(name).is_absolute():
            raise _only_here(path.name)
        return Code(model=ref.target, source_sha256=ref.source_sha256)
    if "://" in working_dir:
        return Code(model=model, source_sha256=ref.source_sha256)
    root = resolved_folder(working_dir)
    if not path.is_relative_to(root):
        raise _outside(path, root)
    return Code(model=f"{prefix}:./{path.relative_to(root)}", source_sha256=ref.source_sha256)


def resolved_folder(working_dir: str) -> Path:
    """Absolute path of the folder that `--working-dir` names; raises `UsageError` if there is none."""
    try:
        folder = resolved(working_dir)
        if folder.is_dir():
            return folder
        reason = ""
    except OSError as error:
        folder, reason = Path(working_dir), f" ({error.strerror})"
    raise UsageError(
        f"there is no folder {folder}{reason}: give the folder with the code, or the URI of a zip file"
    )


def _only_here(file: str) -> UsageError:
    return UsageError(
        f"{file} is a file of this machine: give its folder with --working-dir to copy it to every node, or "
        "its absolute path if all nodes have it there"
    )


def _outside(file: str | Path, root: Path) -> UsageError:
    return UsageError(
        f"{file} is not in the working directory {root}: name a file in it, or give another --working-dir"
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def make_spec(
    settings: TuneSettings,
    options: Mapping[str, str],
    code: Code,
    *,
    max_drivers: int,
) -> JobSpec:
    """Specification of a job from its options; working directory and fleet are filled in later.

    Args:
        code: reference to the workload.
        max_drivers: number of running jobs at which the job waits.
    """
    return JobSpec(
        options={**options, _MODEL: code.model},
        workload=_short_name(code.model),
        gpu=None if settings.gpu is None else settings.gpu.key,
        max_drivers=max_drivers,
    )


def _short_name(model: str) -> str:
    return WorkloadRef(kind="file" if _is_file(model) else "import", target=model).name


def _is_file(model: str) -> bool:
    location = model.rpartition(":")[0]
    return location.endswith(".py") or "/" in location


def job_id(spec: JobSpec, code: Code) -> str:
    """Readable id of a job; equal job contents give equal ids."""
    memory = spec.options.get("gpu-mem")
    return _readable_id(spec.workload, spec.gpu or memory or "local", _content(spec, code))


def fleet_id(spec: JobSpec, code: Code, cards: Sequence[str]) -> str:
    """Readable id of a fleet, the jobs that differ only in the card; one job for each of `cards`."""
    return _readable_id(spec.workload, "fleet", {**_content(spec, code), "cards": list(cards)})


def _content(spec: JobSpec, code: Code) -> dict[str, Any]:
    folder = spec.working_dir
    return {
        "options": dict(spec.options),
        "source_sha256": code.source_sha256,
        "working_dir": None if folder is None else folder.digest or folder.where,
        "fleet": spec.fleet,
    }


def _readable_id(workload: str, target: str, content: Mapping[str, Any]) -> str:
    readable = re.sub(r"[^a-z0-9.]+", "-", f"{workload}-{target}".lower()).strip("-.")
    return f"{readable[:64]}-{fingerprint(content)[:12]}"


# ── command of the driver ───────────────────────────────────────────────────────────────────


def entrypoint(job: JobRecord, *, storage_url: str | None, first_attempt: bool) -> str:
    """Shell command that runs a job on the cluster, as its driver.

    Args:
        storage_url: storage that holds the job; None if an environment variable on the cluster names it.
        first_attempt: whether this is the job's first driver. A later one continues the search of the earlier
            ones, also if the job has the option `--fresh`.
    """
    program = ["python", "-c", _INSTALLED] if job.spec.working_dir is None else ["python", "-c", _ASIDE]
    arguments = []
    for option, text in job.spec.options.items():
        if not _is_switch(option):
            arguments.append(f"--{option}={text}")
        elif text.lower() in ("true", "1", "yes") and (option != _FRESH or first_attempt):
            arguments.append(f"--{option}")
    if storage_url is not None:
        arguments.append(f"--storage={storage_url}")
    return shlex.join([*program, "tune", *arguments, "--address=auto", f"--job={job.job_id}"])


def _is_switch(option: str) -> bool:
    return option in OPTIONS and OPTIONS[option].is_switch


def storage_for_driver(storage: str | None) -> str | None:
    """Storage URL or path for the driver's command; None if it has a password, or is not given.

    A file gets its absolute path, because the driver starts in another folder.
    """
    if storage is None or has_secret(storage):
        return None
    if "://" not in storage:
        return str(Path(storage).expanduser().absolute())
    sqlite, slashes, path = storage.partition(":///")
    if slashes and sqlite.startswith("sqlite") and path and not path.startswith(("/", ":")):
        return f"{sqlite}:///{Path(path).absolute()}"
    return storage
