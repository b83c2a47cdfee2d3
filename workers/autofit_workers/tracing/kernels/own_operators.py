"""Operators that the user's own code defines in Python, by `torch.library.custom_op`.

Their Python function is run, as on a real GPU, so that its temporaries count; the function that describes
their outputs to PyTorch's compiler says nothing of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.triton_kernels import custom_ops
from autofit_workers.tracing.kernels.following import kernel_of
from autofit_workers.tracing.recording.call_sites import is_users_own

_ANY = None  # device of a function that is meant for all devices


def body_of(func: OpOverload) -> Callable[..., Any] | None:
    """Python function that an operator of the user's runs on a GPU.

    None for other operators, and for those registered with `autofit.register_kernel`. Functions of installed
    libraries are not run either, as many call compiled code.
    """
    defined = custom_ops.OPDEFS.get(func._schema.name)
    if defined is None or kernel_of(func) is not None or not _is_own(defined):
        return None
    bodies: dict[str | None, Callable[..., Any]] = defined._backend_fns
    return bodies.get("cuda") or bodies.get(_ANY)


@functools.cache
def _is_own(defined: Any) -> bool:
    code = getattr(defined._init_fn, "__code__", None)
    return code is not None and is_users_own(code)
