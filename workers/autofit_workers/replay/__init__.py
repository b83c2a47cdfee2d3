"""Replay of traces: peak memory in bytes and time in seconds. Uses only the standard library.

allocator/  PyTorch's caching allocator
curve/      from traces to the peak at any batch size
snapshots/  memory snapshots of real runs, read and followed block by block
plans/      which plan cuDNN takes for a convolution, and its workspace; data/ holds measured ones
time/       how long kernels and transfers take
spans.py    a size that is known as a range
vendors.py  what each vendor's libraries take
"""
