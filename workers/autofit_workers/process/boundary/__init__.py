"""Boundary that keeps a predicted workload from changing the machine, by namespaces of Linux.

entering    takes the process of a workload inside, and keeps the result
permissions what the workload may do there
variables   the environment of such a process, without secrets
namespaces  the processes between the command and the workload, and how they end
tree        the file tree inside: everything there is, and what is written is in memory
mounts      what is mounted where, as the kernel tells it
kernel      Linux's calls that Python lacks
"""
