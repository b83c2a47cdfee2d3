"""What a predicted workload may do, and what became of the boundary around it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from autofit_workers.process.boundary.restrictions import Restrictions
from autofit_workers.spec.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What a predicted workload may do of what it may not by default.

    Attributes:
        network: use the machine's network.
        subprocesses: start processes where there is no boundary around them.
        kept_variables: see variables of the environment though they may hold a secret.
    """

    network: bool = False
    subprocesses: bool = False
    kept_variables: tuple[str, ...] = ()

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """What the settings of a trial say of it."""
        return cls(
            network=setup.allows_network,
            subprocesses=setup.allows_subprocesses,
            kept_variables=setup.kept_variables,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What became of an attempt to enter the boundary.

    Attributes:
        is_inside: whether this process is the workload's, inside.
        reason: why it is not.
        missing: places of the file tree that are empty inside.
        restrictions: what it has given up instead.
    """

    is_inside: bool
    reason: str = ""
    missing: tuple[str, ...] = ()
    restrictions: Restrictions | None = None
