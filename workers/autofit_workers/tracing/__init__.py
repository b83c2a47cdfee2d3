"""Traces the allocations and frees of a training step on a fake device; the package needs torch.

probe.py    traces a workload or a script
fake/       the fake GPU
host/       the fake CPU, for a step that trains on the CPU
recording/  records allocations, operator calls and streams of a traced step
kernels/    operators of other libraries than PyTorch
scripts/    traces an unmodified training script
values/     known and made-up values of fake tensors
"""
