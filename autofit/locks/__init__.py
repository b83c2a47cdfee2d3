"""Locks of memory: predicted peaks in a file under version control, and what grew since they were written.

    lock_file.py        the file memory.lock.toml: its data, read and written
    configurations.py   what is to be locked: of pyproject.toml, of options, or of a lock
    locking.py          predicts configurations; holders.py: which module and line hold the memory at the peak
    growth.py           compares memory before and after, by line
    locked.py           autofit lock · checking.py: autofit check --lock · diff.py: autofit diff
    revisions.py        a worktree of git for each revision · apart.py: predicts there in a process of its own
    documents.py        JSON's types of comparisons

Whether memory grew is decided by peaks alone; lines say where.
"""
