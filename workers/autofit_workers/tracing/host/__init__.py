"""Traces of a step on the CPU, with what the step allocates on the host."""
