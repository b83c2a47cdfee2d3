"""Predicting: a training step on a GPU that is not there, and its peak for any batch size.

    fake/       the GPU that is not there              ┐
    host/       the same for a process on the CPU      │ import torch
    recording/  what a traced step did                 │
    kernels/    operators that are not PyTorch's       │
    scripts/    a training script as it is             ┘
    curve/      from traces to a peak                  ┐ need no torch
    plans/      which plan cuDNN takes, and its memory ┘

`probe` traces one step; `explaining` and `self_test` use it. `spans` and `versions` need no torch.
"""
