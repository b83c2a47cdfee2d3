"""Keeps a script from changing files, processes or network where Linux namespaces do not isolate it.

table      all guarded functions and events, with their rules
places     owner of a file: the user or the script
auditing   Python's audit events, which rules may refuse
processes  ways to start another process
queries    commands that only read information, which a script may start
network    connections
"""
