"""What keeps a predicted workload from changing anything: the kernel's namespaces, where Linux has them.

entering    the process of a workload goes inside; what became of that
permissions what it may do there
variables   the environment of such a process, without secrets
namespaces  the processes between the command and the workload, and how they end
tree        the file tree inside: everything there is, and what is written is in memory
mounts      what is mounted where, as the kernel tells it
kernel      Linux's calls that Python lacks
"""
