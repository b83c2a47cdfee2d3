"""Operators of other libraries than PyTorch: their outputs and scratch memory on a card.

    registry.py     registry of such operators, from the files here and from users; needs no torch
    triton.py       Triton kernels, which Python launches directly: a launch does nothing
    run_time.py     CUDA kernels that a program compiles itself: likewise
    extensions.py   extensions that libraries compile where they first use them
    following.py    outputs and scratch memory of a call; notes for the user about unregistered operators
    stand_ins/      modules imported in place of libraries that are not installed

Every other file has the operators of one library in `KERNELS`; a line in `registry.py` names the file.
"""
