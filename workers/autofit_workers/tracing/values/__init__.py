"""Known values of tensors that have none, and made-up values where a program asks for them.

known.py follows the values that came from the CPU, as far as effort.py allows; made_up.py has numbers that
say that they are made up; decisions.py takes the branches that depend on those; sized.py finds sizes that
depend on values; reads.py answers the program.
"""
