"""Follows values of fake tensors where they are known, and makes up the others that a program reads.

known.py follows the values that came from the CPU, as far as effort.py allows; made_up.py has numbers that
say that they are made up; decisions.py takes the branches that depend on those; sized.py finds sizes that
depend on values; reads.py answers the program.
"""
