"""Measures the memory and time of real training steps, on CUDA cards and the CPU."""
