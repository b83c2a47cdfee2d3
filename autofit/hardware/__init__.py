"""GPU models: their catalogue and chips, memory outside the allocator, and the memory left to PyTorch."""
