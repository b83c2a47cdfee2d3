"""A training step on a GPU that is not there, and what it does with memory. Torch is imported here.

probe.py    traces a workload, or a script
fake/       the GPU that is not there
host/       the same for a process on the CPU
recording/  what a traced step did
kernels/    operators that are not PyTorch's
scripts/    a training script as it is
values/     values that no GPU has computed
"""
