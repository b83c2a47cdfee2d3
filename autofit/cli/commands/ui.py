"""`autofit ui`: a page on which a configuration is changed by hand."""

from __future__ import annotations

import sys
import webbrowser
from typing import TYPE_CHECKING

import click

from autofit.cli.options.shared import complete_model, setting
from autofit.errors import DriverError, ExitCode
from autofit.hardware.gpus import catalogue, find_gpu

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.hardware.gpus import Gpu


@click.command()
@click.argument("model", metavar="[MODEL]", required=False, default="", shell_complete=complete_model)
@setting("gpu", help_text="The card that is chosen at first.  [default: the card of this machine]")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Samples a step.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address of the loopback interface to serve on.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port to serve on.  [default: any free port]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.pass_obj
def ui(
    backend: Backend, /, *, model: str, gpu: str | None, batch_size: int, host: str, port: int, opens: bool
) -> ExitCode:
    """Serve a page on which sizes are tried by hand.

    Batch size, length, precision, adapter, optimizer and checkpointing are moved on the page; the peak, what
    it is made of and the verdict on every card follow. A model is traced once for all batch sizes. The page
    is for this machine alone: its address, which is printed, contains a token.

    Ends with 0 on SIGTERM or Ctrl-C, 2 for wrong options, 5 when the port is in use.
    """
    from autofit.cli.internal_error import internal_error
    from autofit.report.html.plotly_js import require_plotly_js
    from autofit.ui.page import rendered
    from autofit.ui.server import listening, new_token, serve_page

    require_plotly_js()
    chosen = _local(backend) if gpu is None else find_gpu(gpu)
    page = rendered(model=model, gpu=chosen, batch_size=batch_size)
    listens, token = listening(host, port), new_token()
    named = f"[{host}]" if ":" in host else host
    address = f"http://{named}:{listens.getsockname()[1]}/{token}/"

    def say() -> None:
        click.echo(address)
        sys.stdout.flush()
        if opens:
            webbrowser.open(address)

    with listens:
        serve_page(
            listens, page, token, internal=lambda error: internal_error(error, ["ui", model]), on_start=say
        )
    return ExitCode.FOUND


def _local(backend: Backend) -> Gpu | None:
    """Card of the catalogue that is in this machine; None if there is none, or it is not known."""
    try:
        names = {each.name for each in backend.local_gpus()}
    except DriverError:  # the page works without
        return None
    return next((gpu for gpu in catalogue().values() if gpu.name in names), None)
