"""Stand-in for `selective_scan_cuda`, the compiled module of mamba-ssm's first Mamba model.

The stand-in allocates what csrc/selective_scan/selective_scan.cpp of release 2.3.2 does
(github.com/state-spaces/mamba), in the same order. The kernels need no scratch memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["bwd", "fwd"]

_CHUNK = 2048  # tokens for which one state is kept


def fwd(  # noqa: PLR0917 - the library's own signature
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,  # noqa: ARG001
    c: Tensor,  # noqa: ARG001
    d: Tensor | None,  # noqa: ARG001
    z: Tensor | None,
    delta_bias: Tensor | None,  # noqa: ARG001
    delta_softplus: bool,  # noqa: ARG001
) -> list[Tensor]:
    """Outputs of `selective_scan_fwd`: the output, the states after each chunk, and the gated output."""
    gated = [] if z is None else [torch.empty_like(z)]
    output = torch.empty_like(delta)
    batch, dim, length = u.shape
    states = u.new_empty((batch, dim, -(-length // _CHUNK), 2 * a.size(1)), dtype=a.dtype)
    return [output, states, *gated]


def bwd(  # noqa: PLR0917 - likewise
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    dout: Tensor,  # noqa: ARG001
    x: Tensor | None,  # noqa: ARG001
    out: Tensor | None,
    dz: Tensor | None,
    delta_softplus: bool,  # noqa: ARG001
    recompute_out_z: bool,
) -> list[Tensor | None]:
    """Gradients of `selective_scan_bwd`; those of time-varying `b` and `c` are summed in float32."""
    if z is not None and dz is None:
        dz = torch.empty_like(z)
    gated = torch.empty_like(out) if recompute_out_z and out is not None else None
    du, ddelta, da = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)
    db, dc = (torch.zeros_like(each, dtype=torch.float32 if each.dim() >= 3 else None) for each in (b, c))
    dd, dbias = (None if each is None else torch.zeros_like(each) for each in (d, delta_bias))
    gradients = [du, ddelta, da, db.to(b.dtype), dc.to(c.dtype), dd, dbias]
    return [*gradients, *([] if z is None else [dz]), *([] if gated is None else [gated])]
