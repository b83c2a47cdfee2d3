"""`autofit serve`: the metrics of a cluster, from its storage."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from typing import Any

import click

from autofit.cli.options.jobs import job_storage
from autofit.cli.options.shared import setting, without_secret
from autofit.cli.options.webhook import WEBHOOK, start_webhook
from autofit.errors import ExitCode
from autofit.jobs.submission import STORAGE_VARIABLE

_ADMIT_SECONDS = 5.0
_END_SECONDS = 5.0
# Interval at which threads switch. With Python's default of 5 ms, a scrape would wait that long at each of
# its steps while another thread reads the storage.
_SWITCH_SECONDS = 0.00005


@click.command()
@setting(
    "storage",
    help_text="Where searches and jobs are kept: an Optuna URL or a .journal file.  "
    f"[default: {STORAGE_VARIABLE}, "
    "else the journals of the state directory]",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to serve on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9465,
    show_default=True,
    metavar="PORT",
    help="Port to serve on; 0 for any free port.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads of the storage.",
)
@click.option(
    "--address",
    envvar="AUTOFIT_ADDRESS",
    metavar="URL",
    callback=without_secret("AUTOFIT_ADDRESS"),
    help="Also start queued jobs, on the cluster with this dashboard, such as http://head:8265.",
)
@WEBHOOK
def serve(
    storage: str | None, host: str, port: int, interval: float, address: str | None, **webhook: Any
) -> ExitCode:
    """Serve the Prometheus metrics of a storage.

    The storage is the source of searches and jobs, so a restart shows the same counts. There are no counts
    until it has been read once. While it cannot be read, autofit_storage_up is 0 and reading is tried again.
    Peaks of real runs are those that `autofit observe` stored in this machine's state directory.

    \b
    /metrics   for Prometheus
    /healthz   503 when the process should be restarted
    /readyz    503 when the storage cannot be read

    With --webhook, pods annotated with autofit.dev/check: NAME are held against the memory that a lock of
    `autofit lock` says configuration NAME needs, before Kubernetes creates them.

    Ends with 0 on SIGTERM or Ctrl-C, 2 for wrong options, 5 when the port is in use.
    """  # noqa: D301 - click looks for the character, and keeps these lines as they are
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from autofit.serve.background import Background
    from autofit.serve.metrics import Metrics
    from autofit.serve.observation_reader import BesideObservations, ObservationReader
    from autofit.serve.reader import reader_of
    from autofit.serve.server import serve_metrics
    from autofit.serve.watch import StorageWatch

    # Drops the `_created` series: the time at which this process began each count, which a restart changes.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    storage = job_storage(storage)
    sys.setswitchinterval(_SWITCH_SECONDS)
    served, counted = CollectorRegistry(), CollectorRegistry()
    metrics = Metrics(counted)
    reader = reader_of(storage, emit=metrics, log=_log)
    observations = ObservationReader(emit=metrics, log=_log)

    def begin_to_count() -> None:
        served.register(counted)
        gc.freeze()  # records that were read stay in memory; collecting among them would delay every scrape

    watch = StorageWatch(
        BesideObservations(reader, observations), registry=served, on_first_read=begin_to_count, log=_log
    )
    checks = {"/healthz": watch.why_stuck, "/readyz": watch.why_not_ready}
    background = Background()
    with contextlib.ExitStack() as ended:
        ended.callback(background.join, _END_SECONDS)
        ended.callback(background.stop)
        server = serve_metrics(served, port, host, checks=checks)
        ended.callback(server.close)
        reviewing = start_webhook(host=host, registry=served, background=background, log=_log, **webhook)
        if reviewing is not None:
            ended.callback(reviewing.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: background.stop())
        _log(f"metrics at http://{host}:{server.port}/metrics")
        background.repeat(watch.read, pause_seconds=interval, at_end=reader.close, name="storage")
        if address is not None:
            from autofit.serve.admitting import Admitting  # imports Ray's client, which takes a second

            admitting = Admitting(storage, address=address, log=_log)
            background.repeat(
                admitting.run, pause_seconds=_ADMIT_SECONDS, at_end=admitting.close, name="admission"
            )
        background.wait()
    return ExitCode.FOUND


def _log(sentence: str) -> None:
    click.echo(sentence, err=True)
