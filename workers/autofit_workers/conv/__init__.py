"""Exact rewrites of convolutions as other computations, with gradients, on any device.

    geometry.py     stride, padding, dilation, groups; lengths that follow from them
    lowering.py     `Lowering`, and the autograd function that all lowerings share
    lowerings.py    the lowering of each rewrite
    im2col.py fft.py matmul_1x1.py chunked.py     the rewrites
    intercept.py    puts a rewrite in the place of a model's convolutions, and takes it out again

The memory that each rewrite takes beside its output is in `autofit_workers.spec.conv_algorithms`, without
torch.
"""
