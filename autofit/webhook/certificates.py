"""Certificate and key of a TLS server, renewed while it serves.

cert-manager renews a certificate weeks before it ends, in the files of a mounted secret. Connections that are
open keep the former one; new ones get the new one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from autofit.errors import UsageError
from autofit.paths import FileStamp, stamp_of


class Certificates:
    """Certificate and key of a TLS server, in two PEM files.

    Args:
        certificate: file of the certificate, with those of its issuers.
        key: file of its private key, without a password.
        log: writes a sentence for the operator.

    Attributes:
        context: context for the server's sockets.
        num_failures: how often the files changed and could not be used.

    Raises:
        UsageError: the files cannot be read, or do not belong together.
    """

    def __init__(self, certificate: Path, key: Path, *, log: Callable[[str], None]) -> None:
        self._certificate, self._key, self._log = certificate, key, log
        self.num_failures = 0
        try:
            self._stamps = self._now()
            self._newest = self._loaded()
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"{certificate} and {key} are no certificate with its key ({_reason(error)}): give PEM files "
                "with --tls-cert and --tls-key"
            ) from error
        self.context = self._newest
        # Called at each connection, before a certificate is sent: the way in which a server may choose one.
        self.context.sni_callback = self._choose

    def refresh(self) -> None:
        """Uses the files' new content, if they have changed; keeps the former one if it cannot be used."""
        try:
            stamps = self._now()
            if stamps == self._stamps:
                return
            self._newest, self._stamps = self._loaded(), stamps
        except (OSError, ssl.SSLError) as error:
            self.num_failures += 1
            if (
                self.num_failures == 1
            ):  # it is tried again at each call: one of two files may be there already
                self._log(f"the former certificate stays in use: {self._certificate}: {_reason(error)}")
            return
        self._log(f"a new certificate is in use: {self._certificate}")
        self.num_failures = 0

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _now(self) -> tuple[FileStamp, FileStamp]:
        return stamp_of(self._certificate), stamp_of(self._key)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key, password=_no_password)
        return context


def _no_password() -> str:
    """Called for a key that is encrypted, for which OpenSSL would ask at the terminal."""
    raise ssl.SSLError("the key has a password")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
