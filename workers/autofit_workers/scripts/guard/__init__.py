"""Keeps a script from changing files, processes or network where Linux namespaces do not isolate it.

table      all that is guarded, and how
places     whose a file is: its user's, or the script's own
auditing   Python's audit events, which rules may refuse
processes  the ways to start another process
queries    the commands that only look at something, which a script may start
network    connections
"""
