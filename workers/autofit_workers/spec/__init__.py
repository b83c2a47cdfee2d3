"""Specs and outcomes of trials, with their vocabulary; needs the standard library only.

setup.py knobs/          setup and knobs of a workload: the fixed part, and the part that may be searched
workloads/               references that name workloads, and facts known by a workload's name
conv_algorithms/         convolution algorithms, and the memory that each takes
protocol.py              a trial's spec and its outcome
trace/ work.py           memory events of a traced step, and its work
parallel_kinds.py pipeline.py architecture.py versions.py    ranks, stages, chips, releases of PyTorch
errors.py documents.py plain.py shown.py former.py           errors, JSON, and texts that are shown
"""
