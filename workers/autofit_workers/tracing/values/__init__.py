"""Follows values of fake tensors where they are known, and makes up the others that a program reads.

known.py tracks values that come from the CPU, within the limits of effort.py; made_up.py has the number types
of made-up values; decisions.py records branches and sizes that depend on them; sized.py runs operators whose
output sizes depend on values; reads.py answers Python calls that read values.
"""
