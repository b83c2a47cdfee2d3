"""Traces the memory that a training step takes, on a fake GPU; torch is imported here.

probe.py    traces a workload, or a script
fake/       the fake GPU
host/       the fake device of a step on the CPU
recording/  what a traced step did
kernels/    operators that are not PyTorch's
scripts/    an unmodified training script
values/     values that no GPU has computed
"""
