"""Chooses the dispatcher that a search asked for; an inline one if Ray cannot start.

ray       connected        the cluster that this process is connected to
          an address       that cluster, through a separate process; its failures are errors
          none             a cluster of this machine, started for the search and ended with it
                             └ it cannot start: inline, and the answer says so
inline                     trials run one after another here, without Ray
"""

from __future__ import annotations

import sys

from autofit.dispatch.apart import RayApart
from autofit.dispatch.base import Dispatcher
from autofit.dispatch.inline import InlineDispatcher
from autofit.dispatch.ray import RayDispatcher
from autofit.dispatch.ray_connection import RayStartError
from autofit.dispatch.requests import INLINE, Wishes
from autofit.events import EventSink


def connect(
    dispatch: str, address: str | None, *, wishes: Wishes, node_wait_seconds: float, emit: EventSink
) -> Dispatcher:
    """Makes the dispatcher that runs the measured trials of a search.

    If Ray cannot start on this machine, and no other cluster is named, trials run without it, one at a time.

    Args:
        dispatch: kind of dispatcher, one of `requests.DISPATCHES`: on this machine or on a Ray cluster.
        address, wishes, node_wait_seconds, emit: for a Ray cluster, see `RayDispatcher`.

    Raises:
        DispatchError: the cluster at the address cannot be reached.
        UsageError: the text is no address.
    """
    if dispatch == INLINE:
        return InlineDispatcher()
    # An existing connection of this process is used.
    make = RayDispatcher if _is_connected() else RayApart
    try:
        return make(address, wishes=wishes, node_wait_seconds=node_wait_seconds, emit=emit)
    except RayStartError as error:
        if address is not None:
            raise
        return InlineDispatcher(
            notes=(
                f"Ray could not start ({error.reason}): trials ran one after another on this machine. "
                "--dispatch inline says so from the start.",
            )
        )


def _is_connected() -> bool:
    """Whether the process is connected to Ray, checked without importing Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(getattr(ray, "is_initialized", lambda: False)())
