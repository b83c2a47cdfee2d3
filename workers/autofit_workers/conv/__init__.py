"""Exact rewrites of convolutions as other operators, with gradients, on any device.

    geometry.py     stride, padding, dilation, groups, and output shapes
    lowering.py     `Lowering`, and the autograd function that all lowerings share
    lowerings.py    the lowering of each rewrite
    im2col.py fft.py matmul_1x1.py chunked.py     the rewrites
    intercept.py    runs a rewrite in place of a model's convolutions

`autofit_workers.spec.conv_algorithms` computes the memory of each rewrite besides its output, without
torch.
"""
