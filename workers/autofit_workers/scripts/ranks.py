"""Ranks of a script, with the environment variables that a launcher sets for them.

One rank runs, in this process; the others do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from autofit_workers.spec.errors import InapplicableError, UnsupportedError

MEASURED_ALONE = (
    "a script of several ranks is predicted, and measured as one process alone: leave out what measures "
    "(--probe measure, --device)"
)


class Ranks:
    """Number of ranks that a script was started as, and the one rank that this process runs.

    Args:
        name: name of the script, for messages.
        refuse: ends the script with an error.
        asked: number of the rank that the user wants to run; None if the script may start only one process.

    Attributes:
        num_ranks: number of ranks on all machines.
        num_local: number of ranks on each machine, which has a GPU for each rank.
        rank: number of the rank that runs, among all.
    """

    def __init__(self, name: str, refuse: Callable[[Exception], NoReturn], asked: int | None = None) -> None:
        self._name = name
        self._refuse = refuse
        self._asked = asked
        self.num_ranks = self.num_local = 1
        self.rank = 0

    @property
    def local_rank(self) -> int:
        """Local rank of this process: its number among the ranks of its machine, which is also its GPU's."""
        return self.rank % self.num_local

    def start(self, num_ranks: int, num_local: int, launcher: str) -> None:
        """Records that a launcher starts the script as `num_ranks` ranks.

        Ends the script if it may start only one process, or if the rank that the user asked for is not among
        them.

        Args:
            num_ranks: number of ranks on all machines.
            num_local: number of ranks on each machine.
            launcher: name of the launcher, for messages.
        """
        if num_ranks > 1 and self._asked is None:
            self._refuse(
                UnsupportedError(f"{self._name} starts {num_ranks} ranks with {launcher}: {MEASURED_ALONE}")
            )
        rank = self._asked or 0
        if rank >= num_ranks:
            self._refuse(
                InapplicableError(
                    f"--rank {rank}: {launcher} starts {num_ranks} rank{'s'[: num_ranks != 1]} of "
                    f"{self._name}, 0 to {num_ranks - 1}"
                )
            )
        self.num_ranks, self.num_local, self.rank = num_ranks, num_local, rank

    def joined(self, num_ranks: int, rank: int) -> None:
        """Records that the script has joined the process group of all ranks, as `rank`."""
        if num_ranks == self.num_ranks and rank == self.rank:
            return
        self.start(num_ranks, max(self.num_local, 1), "init_process_group")
        self.rank = rank

    def require_asked(self) -> None:
        """Raises `InapplicableError` if a rank was asked for, but only one process was started."""
        if self._asked and self.num_ranks == 1:
            raise InapplicableError(
                f"--rank {self._asked}: {self._name} starts no ranks: say how many a launcher starts, as in "
                "--nproc 8"
            )

    def variables(self) -> dict[str, str]:
        """Environment variables of torchrun (`_start_workers` of torch/distributed/elastic/agent/server)."""
        num_machines = self.num_ranks // self.num_local
        told = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.num_ranks,
            "LOCAL_WORLD_SIZE": self.num_local,
            "GROUP_RANK": self.rank // self.num_local,
            "GROUP_WORLD_SIZE": num_machines,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.num_ranks,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        }
        return {name: str(value) for name, value in told.items()}
