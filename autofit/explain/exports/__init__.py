"""What other programs open: Chrome traces, and snapshots for PyTorch's memory viewer."""
