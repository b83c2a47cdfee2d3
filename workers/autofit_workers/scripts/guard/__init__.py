"""Keeps a script from changing anything where it is not in the boundary of the kernel's namespaces.

table      all that is guarded, and how
places     whose a file is: its user's, or the script's own
auditing   Python's audit events, which rules may refuse
processes  the ways to start another process
queries    the commands that only look at something, which a script may start
network    connections
"""
