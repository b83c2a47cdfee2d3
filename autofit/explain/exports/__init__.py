"""Exports for other programs: Chrome traces, and snapshots for PyTorch's memory viewer."""
