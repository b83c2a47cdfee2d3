"""Traces a training step on a fake GPU, and what it does with memory. Torch is imported here.

probe.py    traces a workload, or a script
fake/       the fake GPU
host/       the fake device of a step on the CPU
recording/  what a traced step did
kernels/    operators that are not PyTorch's
scripts/    an unmodified training script
values/     values that no GPU has computed
"""
