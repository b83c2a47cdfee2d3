"""Permissions of a predicted workload, and the result of entering the boundary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from autofit_workers.process.boundary.restrictions import Restrictions
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Actions that a predicted workload may take beyond the default, such as using the network.

    Attributes:
        network: whether the workload may use the machine's network.
        subprocesses: whether it may start processes if no boundary surrounds them.
        kept_variables: environment variables that it may see though they may hold a secret.
    """

    network: bool = False
    subprocesses: bool = False
    kept_variables: tuple[str, ...] = ()

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """Returns the permissions that a trial's setup grants its workload."""
        return cls(
            network=setup.allows_network,
            subprocesses=setup.allows_subprocesses,
            kept_variables=setup.kept_variables,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """Result of an attempt to enter the process boundary, which keeps a workload from changing anything.

    Attributes:
        is_inside: whether this process is inside the boundary.
        reason: why it is not inside; empty if it is.
        missing: paths that could not be made visible inside, and are empty there.
        restrictions: restrictions that the kernel has put on the process instead, if it is outside.
    """

    is_inside: bool
    reason: str = ""
    missing: tuple[str, ...] = ()
    restrictions: Restrictions | None = None
