"""What is said of a trial, and what comes back. The standard library suffices here.

setup.py knobs/          how a workload is run: what is fixed, and what may be searched
workloads/               which workload: the references that name one, and what is known of it by name
conv_algorithms/         convolution algorithms: what each is and takes
protocol.py              a trial's spec and its outcome
trace/ work.py           what a traced step did with memory, and what it computed
parallel_kinds.py pipeline.py architecture.py versions.py    ranks, stages, chips, releases of PyTorch
errors.py documents.py plain.py shown.py former.py           errors, JSON, and texts that are shown
"""
