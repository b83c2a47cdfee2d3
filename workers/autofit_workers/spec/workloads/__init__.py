"""Workloads without importing them: references to a workload, and facts known by its name."""
