"""Convolution plans from an installed libcudnn, each queried once and cached on disk."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from autofit_workers.process.child_process import NO_GPU, ChildProcess
from autofit_workers.replay.plans.cudnn import CudnnError, dotted, find_library
from autofit_workers.replay.plans.device_properties import DeviceProperties
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.documents import parse_json, read_file
from autofit_workers.spec.work import Convolution

# The longest request, every convolution of a large model at some sizes, takes a few seconds.
_DEADLINE_SECONDS = 120.0


class CudnnPlans:
    """Source of convolution plans that asks an installed libcudnn, which needs no GPU for it; a `PlanSource`.

    Args:
        properties: properties of the card that the plans are for.
        cache_folder: folder in which plans are cached in a file for each library and card, with a line for
            each query; None to cache them in this process only.
    """

    def __init__(self, properties: DeviceProperties, *, cache_folder: Path | None = None) -> None:
        self._device = properties.to_json()
        self._known: dict[str, tuple[Plan, ...]] = {}
        self._version: int | None = None
        self._cache = None if cache_folder is None else cache_folder / f"{self._digest()}.jsonl"
        self._read_cache()

    knows_the_order = True

    @staticmethod
    def is_available() -> bool:
        """Whether a libcudnn of any version is installed; one that is too old fails at the first query."""
        return find_library("libcudnn.so.9") is not None

    @property
    def name(self) -> str:
        if self._version is None:
            self.plans([])
        return f"cuDNN {dotted(self._version or 0)}"

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Plans of each call, from libcudnn or from its cached answers; see `PlanSource`.

        Raises:
            CudnnError: the library cannot be used, or has no plan for a call.
        """
        keys = [_key(call) for call in calls]
        missing = {key: call for key, call in zip(keys, calls, strict=True) if key not in self._known}
        if missing or self._version is None:
            answer = _server.ask({"device": self._device, "calls": _as_dicts(missing.values())})
            self._version = answer["version"]
            self._known |= zip(missing, map(_plans, answer["plans"]), strict=True)
            self._keep(dict(zip(missing, answer["plans"], strict=True)))
        found = [self._known[key] for key in keys]
        for call, plans in zip(calls, found, strict=True):
            if not plans:
                raise CudnnError(f"cuDNN {dotted(self._version)} has no plan for {call}")
        return found

    def prepare(self) -> None:
        """Starts the process that loads libcudnn, without waiting for it; does nothing if plans are cached.

        Raises:
            CudnnError: no process can be started.
        """
        if not self._known:
            _server.start()

    def _digest(self) -> str:
        library = find_library("libcudnn.so.9")
        version = (
            "" if library is None else f"{library} {library.stat().st_size} {library.stat().st_mtime_ns}"
        )
        text = json.dumps([version, self._device])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _read_cache(self) -> None:
        if self._cache is None:
            return
        with suppress(OSError):  # unreadable plans are queried again
            for line in read_file(self._cache).splitlines():
                self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        """Reads a line of the cache file; ignores a line that is incomplete after a full disk or a crash."""
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            data = parse_json(line)
            known = {key: _plans(rows) for key, rows in data["plans"].items()}
            self._version = int(data["version"])
            self._known |= known

    def _keep(self, answers: dict[str, list[list[Any]]]) -> None:
        """Appends plans to the cache file, to which other processes may append at the same time."""
        if self._cache is None:
            return
        line = json.dumps({"version": self._version, "plans": answers}, separators=(",", ":"))
        # A cache that cannot be written costs time, not the answer.
        with suppress(OSError):
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            # Begins with a line end, because the line before may have been cut short.
            with self._cache.open("ab", buffering=0) as file:
                file.write(f"\n{line}\n".encode())


class _PlanServer:
    """Handle of the process that holds libcudnn (`plan_server`), started at the first request."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._started()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer of the process to a request; raises `CudnnError` if libcudnn fails or the process dies."""
        with self._lock:
            process = self._started()
            try:
                text = process.ask(json.dumps(request), time.monotonic() + _DEADLINE_SECONDS)
                answer: dict[str, Any] = parse_json(text)
            except BaseException as error:
                self._process = None
                death = process.kill()
                log = process.log.text().strip().splitlines()
                process.log.close()
                if not isinstance(error, (TimeoutError, EOFError, ValueError)):
                    raise
                raise CudnnError(f"libcudnn's process died ({death}): {log[-1] if log else ''}") from error
        if "error" in answer:
            raise CudnnError(answer["error"])
        return answer

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                process, self._process = self._process, None
                process.dismiss()

    def _started(self) -> ChildProcess:
        if self._process is None:
            try:
                self._process = ChildProcess("autofit_workers.replay.plans.plan_server", NO_GPU)
            except OSError as error:
                raise CudnnError(
                    f"the process that asks libcudnn for plans could not be started ({error})"
                ) from error
        return self._process


_server = _PlanServer()
atexit.register(_server.close)


def _as_dicts(calls: Any) -> list[dict[str, Any]]:
    return [dataclasses.asdict(call) for call in calls]


def _key(call: Convolution) -> str:
    return json.dumps(list(dataclasses.astuple(call)), separators=(",", ":"))


def _plans(rows: list[list[Any]]) -> tuple[Plan, ...]:
    return tuple(Plan(*row) for row in rows)
