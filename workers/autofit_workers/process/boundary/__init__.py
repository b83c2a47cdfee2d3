"""Boundary that keeps a predicted workload from changing the machine, by namespaces of Linux.

entering    moves a workload's process inside, and keeps the result of the attempt
permissions actions that the workload may take there
variables   environment variables of such a process, without secrets
namespaces  processes between the command and the workload, and how they end
tree        file tree inside: the machine's files, with writes kept in memory
mounts      mounts that the kernel reports
kernel      Linux system calls that Python lacks
"""
