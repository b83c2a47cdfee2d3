"""Operators of other libraries than PyTorch: their outputs and scratch memory on a card.

    registry.py     registry of the operators, libraries' own and what users registered; needs no torch
    triton.py       kernels that Python launches itself, by Triton: a launch does nothing
    following.py    a call of one, as a fake device makes it; notes about those that nobody registered

Every other file is a library's, with its operators in `KERNELS`; a line in `registry.py` names it.
"""
