"""Packages of a job's code: zip files of a folder, stored with the jobs.

Ray forgets an uploaded package ten minutes after its last use and when its head restarts, but a job may wait
longer. So the package is in the storage, in a study of its own that only the
admission of its job reads, and is uploaded to Ray when the job's driver is started.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.errors import StorageError, UsageError
from autofit.jobs.records import WorkingDir
from autofit.study.damage import UNREADABLE
from autofit.study.storage import Storage, quiet_optuna
from autofit.units import format_bytes

MAX_PACKAGE_BYTES = 8 * 1024**2

_STUDY_PREFIX = "working-dir-"
_CONTENT = "zip_base64"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file can record
_NUM_NAMED = 3
# Limit before compression: source text compresses to about a third, so a folder beyond it cannot fit.
_MAX_UNPACKED_BYTES = 16 * MAX_PACKAGE_BYTES


class PackageGoneError(StorageError):
    """Raised if the storage no longer holds the package with a job's code."""


def pack(folder: Path, files: Iterable[Path]) -> bytes:
    """Zip of files below a folder, as bytes; equal names and contents give equal bytes.

    Raises:
        UsageError: a file cannot be read, or the package is larger than the storage keeps.
    """
    sized = sorted((path, path.stat().st_size) for path in files)
    if sum(size for _, size in sized) > _MAX_UNPACKED_BYTES:
        raise _too_large(folder, sized, "holds " + format_bytes(sum(size for _, size in sized)))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, _ in sized:
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            try:
                archive.writestr(entry, path.read_bytes())
            except OSError as error:
                raise UsageError(
                    f"cannot read {path} of the working directory ({error.strerror or error}): make it "
                    "readable, or exclude it with a .rayignore file"
                ) from error
    package = packed.getvalue()
    if len(package) > MAX_PACKAGE_BYTES:
        raise _too_large(folder, sized, "packs to " + format_bytes(len(package)))
    return package


def _too_large(folder: Path, sized: list[tuple[Path, int]], how_large: str) -> UsageError:
    largest = sorted(sized, key=lambda file: -file[1])[:_NUM_NAMED]
    named = ", ".join(f"{path.relative_to(folder)} ({format_bytes(size)})" for path, size in largest)
    return UsageError(
        f"the working directory {folder} {how_large}, more than the {format_bytes(MAX_PACKAGE_BYTES)} that "
        f"a job may bring; its largest files are {named}: exclude data with a .rayignore or .gitignore file, "
        "or give the URI of a zip file that every node can fetch (https://…, s3://…)"
    )


def store(storage: Storage, package: bytes) -> WorkingDir:
    """Stores a code package, unless the storage holds it already."""
    digest = hashlib.sha256(package).hexdigest()
    name = f"{_STUDY_PREFIX}{digest[:32]}"

    def keep() -> None:
        study = optuna.create_study(
            storage=storage.backend, study_name=name, direction="maximize", load_if_exists=True
        )
        if all(_content_of(trial, digest) is None for trial in study.get_trials(deepcopy=False)):
            content = base64.b64encode(package).decode("ascii")
            study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE, value=float(len(package)), user_attrs={_CONTENT: content}
                )
            )

    with quiet_optuna():
        storage.run(keep)
    return WorkingDir(digest=digest, where=name)


def load(storage: Storage, working_dir: WorkingDir) -> bytes:
    """Code package of a working directory, read from the storage.

    Raises:
        PackageGoneError: the package is no longer in the storage.
    """

    def read() -> list[FrozenTrial]:
        if working_dir.where not in optuna.get_all_study_names(storage.backend):
            return []
        study = optuna.load_study(study_name=working_dir.where, storage=storage.backend)
        return study.get_trials(deepcopy=False)

    with quiet_optuna():
        trials = storage.run(read)
    found = (_content_of(trial, working_dir.digest) for trial in trials)
    package = next((content for content in found if content is not None), None)
    if package is None:
        raise PackageGoneError(
            f"the job's working directory is no longer in {storage.where}: submit the job with --again"
        )
    return package


def _content_of(trial: FrozenTrial, digest: str | None) -> bytes | None:
    """Code package stored in an Optuna trial, as bytes; None if its digest differs or it cannot be read."""
    try:
        package = base64.b64decode(trial.user_attrs[_CONTENT])
    except UNREADABLE:
        return None
    return package if hashlib.sha256(package).hexdigest() == digest else None
