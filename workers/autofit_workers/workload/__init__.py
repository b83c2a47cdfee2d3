"""What a user runs: its parts, how it crosses processes, and the steps it makes."""

from autofit_workers.workload.workload import Workload

__all__ = ["Workload"]
