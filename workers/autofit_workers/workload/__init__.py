"""Workloads that users run: their parts, how they cross processes, and their steps."""

from autofit_workers.workload.workload import Workload

__all__ = ["Workload"]
