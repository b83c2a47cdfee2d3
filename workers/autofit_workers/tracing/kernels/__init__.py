"""Operators that are not PyTorch's: what they return, and what they take on a card beside that.

    registry.py     what is known of each, a library's own and what users registered; needs no torch
    triton.py       kernels that Python launches itself, by Triton: a launch does nothing
    following.py    a call of one, as a fake device makes it; what to say of those that nobody knows

Every other file is a library's, with its operators in `KERNELS`; a line in `registry.py` names it.
"""
