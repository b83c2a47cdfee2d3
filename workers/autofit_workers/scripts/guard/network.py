"""Lets a predicted script connect only to its own process, where namespaces do not isolate it."""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from typing import Any

from autofit_workers.scripts.guard.auditing import Audit
from autofit_workers.scripts.guard.table import Rule

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_HERE = ("", "localhost", "localhost.localdomain", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1")  # noqa: S104


class Network:
    """Refuses connections and name look-ups by Python code that would leave this process."""

    def __init__(self) -> None:
        self._bound: weakref.WeakSet[Any] = weakref.WeakSet()
        # Read before name look-ups are checked.
        self._name = socket.gethostname()

    def begin(self) -> None:
        judges = {Rule.CONNECTED: self._connect, Rule.RESOLVED: self._resolve, Rule.BOUND: self._bind}
        self._audit = Audit(judges)

    def end(self) -> None:
        """Stops refusing connections and name look-ups."""
        self._audit.is_on = False

    def _bind(self, _event: str, bound: Any, _beside: Any) -> None:
        self._bound.add(bound)

    def _connect(self, _event: str, address: Any, connecting: Any) -> None:
        family = getattr(connecting, "family", None)
        if family not in _FAMILIES or not isinstance(address, tuple):
            return  # a socket of this machine's file system or kernel, or a connected one
        host, port = address[:2]
        if not self._is_here(host) or not (port in self._ports() or _is_unused(port, connecting.type)):
            raise _refusal(f"connect to {host}:{port}")

    def _ports(self) -> set[int]:
        found = set()
        for bound in self._bound:
            with suppress(OSError):  # it is closed
                if bound.family in _FAMILIES:
                    found.add(bound.getsockname()[1])
        return found

    def _resolve(self, _event: str, host: Any, _beside: Any) -> None:
        host = host[0] if isinstance(host, tuple) else host
        if host is not None and not self._is_here(host) and not _is_number(host):
            raise _refusal(f"look up {os.fsdecode(host)}")

    def _is_here(self, host: Any) -> bool:
        name = os.fsdecode(host)
        return name in _HERE or name == self._name or name.startswith("127.")


def _is_unused(port: int, kind: int) -> bool:
    """Whether nobody listens at a port of this machine; launchers check that by connecting."""
    with socket.socket(type=kind) as trial, suppress(OSError):
        trial.bind(("127.0.0.1", port))
        return True
    return False


def _is_number(host: Any) -> bool:
    """Whether a host is given as an IP address, which needs no look-up."""
    for family in _FAMILIES:
        with suppress(OSError):
            socket.inet_pton(family, os.fsdecode(host))
            return True
    return False


def _refusal(what: str) -> PermissionError:
    return PermissionError(
        f"autofit does not let the script {what} while it tries the script: allow that with --allow-network, "
        "or let the script take what it needs from this machine"
    )
