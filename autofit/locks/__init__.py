"""Locks of memory: predicted peaks in a file under version control, and what grew since they were written.

lock_file.py        the file memory.lock.toml: its data, read and written
"""
