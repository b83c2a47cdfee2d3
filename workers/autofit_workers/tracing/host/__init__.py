"""A step on the CPU, traced: what it allocates on the host."""
