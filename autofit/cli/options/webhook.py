"""Options of `autofit serve` for its webhook of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autofit.cli.options.shared import combined
from autofit.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from autofit.serve.background import Background
    from autofit.serve.server import HttpServer

_REFRESH_SECONDS = 5.0
_FILE = click.Path(path_type=Path)

WEBHOOK = combined(
    click.option(
        "--webhook",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Also answer Kubernetes's admission reviews of pods annotated with autofit.dev/check, by HTTPS.",
    ),
    click.option("--tls-cert", type=_FILE, metavar="FILE", help="Certificate of --webhook, in PEM."),
    click.option("--tls-key", type=_FILE, metavar="FILE", help="Key of that certificate."),
    click.option(
        "--lock",
        "locks",
        type=_FILE,
        multiple=True,
        metavar="PATH",
        help="Lock file that --webhook answers from, or a folder of .toml files; may be repeated.",
    ),
    click.option(
        "--deny",
        type=click.Choice(("does-not-fit", "unsure", "unknown")),
        multiple=True,
        help="Refuse pods of this judgement, `unknown` where no lock or no known card tells of them; may be "
        "repeated. By default all are admitted, with a warning.",
    ),
)


def start_webhook(
    *,
    host: str,
    registry: CollectorRegistry,
    background: Background,
    log: Callable[[str], None],
    webhook: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    locks: tuple[Path, ...],
    deny: tuple[str, ...],
) -> HttpServer | None:
    """Starts the webhook that the options ask for; returns None if they ask for none.

    Args:
        host: address to serve on.
        registry: registry that takes the webhook's metrics.
        background: keeps certificate and locks up to date.
        log: writes a sentence for the operator.

    Raises:
        UsageError: an option is missing or has no effect, or the certificate cannot be used.
        InfrastructureError: the port is in use.
    """
    needed: dict[str, object] = {"--tls-cert": tls_cert, "--tls-key": tls_key, "--lock": locks}
    if webhook is None:
        for name in (name for name, value in (needed | {"--deny": deny}).items() if value):
            raise UsageError(f"{name} belongs to --webhook: give its port, as in --webhook 8443")
        return None
    if missing := [name for name, value in needed.items() if not value]:
        raise UsageError(f"--webhook needs {' and '.join(missing)}: Kubernetes sends reviews by HTTPS alone")
    from autofit.serve.server import serve_http
    from autofit.webhook.answering import PATH, WebhookMetrics, answering
    from autofit.webhook.certificates import Certificates
    from autofit.webhook.judging import Judgement
    from autofit.webhook.kept_locks import KeptLocks

    certificates = Certificates(tls_cert, tls_key, log=log)  # type: ignore[arg-type]  # both are given
    kept = KeptLocks(locks, log=log)
    kept.refresh()
    metrics = WebhookMetrics(registry, kept, certificates)
    denied = frozenset(map(Judgement, deny))
    server = serve_http(
        answering(kept, denied, metrics), webhook, host, of="the webhook", tls=certificates.context
    )

    def refresh() -> None:
        certificates.refresh()
        kept.refresh()

    background.repeat(refresh, pause_seconds=_REFRESH_SECONDS, at_end=lambda: None, name="webhook")
    num = kept.num_configurations
    log(f"admission reviews at https://{host}:{server.port}{PATH}, from {num} locked configurations")
    return server
