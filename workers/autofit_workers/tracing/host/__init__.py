"""Traces a step that trains on the CPU, with the host memory that it allocates."""
