"""`autofit serve`: the metrics of a cluster, from its storage."""

from __future__ import annotations

import signal

import click

from autofit.errors import ExitCode

_END_SECONDS = 5.0


@click.command()
@click.option(
    "--storage",
    envvar="AUTOFIT_STORAGE",
    metavar="URL",
    help="The Optuna URL or .journal file that searches share.  [default: the state directory's journals]",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to serve.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9465,
    show_default=True,
    metavar="PORT",
    help="Where to serve; 0 for any free port.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two reads of the storage.",
)
def serve(storage: str | None, host: str, port: int, interval: float) -> ExitCode:
    """Serve the metrics of all searches and jobs that a storage holds.

    The storage is the only source, so that a restart shows the same counts. Until it has been read
    once there are no counts; while it cannot be read it is tried again, and autofit_storage_up is 0.

    \b
    /metrics   for Prometheus
    /healthz   503 when the process should be started again
    /readyz    503 when the storage cannot be read

    Ends with 0 on SIGTERM or Ctrl-C, 2 for wrong options, 5 when the port is in use.
    """  # noqa: D301 - click looks for the character, and keeps these lines as they are
    from prometheus_client import CollectorRegistry

    from autofit.service.metrics import Metrics
    from autofit.service.reader import reader_of
    from autofit.service.server import serve_metrics
    from autofit.service.watch import StorageWatch

    served, counted = CollectorRegistry(), CollectorRegistry()
    watch = StorageWatch(
        reader_of(storage, emit=Metrics(counted), log=_log),
        registry=served,
        on_first_read=lambda: served.register(counted),
        interval_seconds=interval,
        log=_log,
    )
    checks = {"/healthz": watch.why_stuck, "/readyz": watch.why_not_ready}
    server = serve_metrics(served, port, host, checks=checks)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watch.stop())
    try:
        _log(f"metrics at http://{host}:{server.port}/metrics")
        watch.start()
        watch.wait()
    finally:
        server.close()
        watch.join(_END_SECONDS)
    return ExitCode.FOUND


def _log(sentence: str) -> None:
    click.echo(sentence, err=True)
