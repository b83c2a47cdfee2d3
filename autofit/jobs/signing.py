"""Signatures of job records, so that only holders of the storage's key can write jobs.

Without signatures, everybody with write access to the storage could make the cluster run any code, as the
storage has a job's options and the digest of the folder with its code. The signature covers options, digest
and the job's id, so that a record that was changed, or copied under another id, is refused. It does not cover
the progress of a job: its state, its attempts and its answer.

    HMAC-SHA256(key, "autofit.job/1" NUL {"job": …, "job_id": …} as JSON, keys sorted, ASCII, no spaces)
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from autofit.errors import UsageError
from autofit.paths import KEY_VARIABLE
from autofit.study.damage import UnreadableError

_DOMAIN = b"autofit.job/1\0"
_SIGNATURE = "signature"
_FEWEST_CHARACTERS = 32

_kept: list[str] = []  # key of the running command, removed from its environment


class RefusedSignatureError(UnreadableError):
    """Raised for a job record without a valid signature made with the storage's key."""

    def __init__(self) -> None:
        super().__init__(f"is not signed with the key in {KEY_VARIABLE}: it is refused")


class Key:
    """Secret key that signs the job records of a storage; it is never shown.

    Args:
        secret: at least 32 characters that nobody can guess.

    Raises:
        UsageError: the secret is shorter.
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < _FEWEST_CHARACTERS:
            raise UsageError(
                f"{KEY_VARIABLE} is too short to be a key: it takes {_FEWEST_CHARACTERS} characters or "
                "more, such as `openssl rand -hex 32` makes"
            )
        self._secret = secret.encode()

    def signed(self, job_id: str, job: Mapping[str, Any]) -> dict[str, Any]:
        """Copy of a job's record with its signature added."""
        return {**job, _SIGNATURE: self._signature(job_id, job)}

    def require_signed(self, job_id: str, job: Mapping[str, Any]) -> None:
        """Raises `RefusedSignatureError` for a record without a valid signature."""
        given = job.get(_SIGNATURE)
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode(), self._signature(job_id, job).encode()
        ):
            raise RefusedSignatureError

    @staticmethod
    def has_signed(job: Mapping[str, Any]) -> bool:
        """Whether a record has a signature, valid or not."""
        return _SIGNATURE in job

    def _signature(self, job_id: str, job: Mapping[str, Any]) -> str:
        content = {name: value for name, value in job.items() if name != _SIGNATURE}
        text = json.dumps({"job": content, "job_id": job_id}, sort_keys=True, separators=(",", ":"))
        return hmac.new(self._secret, _DOMAIN + text.encode("ascii"), hashlib.sha256).hexdigest()


def storage_key() -> Key | None:
    """Key that signs job records, from this process's environment; None if it is not set.

    Raises:
        UsageError: the key is too short.
    """
    secret = _kept[-1] if _kept else os.environ.get(KEY_VARIABLE)
    return Key(secret) if secret else None


@contextlib.contextmanager
def key_out_of_environment() -> Iterator[None]:
    """Context manager that removes the storage's key from `os.environ`, to hide it from new processes.

    These are Ray's processes, and processes that run users' code.
    """
    secret = os.environ.pop(KEY_VARIABLE, None)
    if secret is None:
        yield
        return
    _kept.append(secret)
    try:
        yield
    finally:
        _kept.pop()
        os.environ[KEY_VARIABLE] = secret
