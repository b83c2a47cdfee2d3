"""The knob `optimizer_impl`: which of PyTorch's implementations of an optimizer runs."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Cost, Knob, Part, one_of

OPTIMIZER_IMPLS = ("default", "foreach", "fused", "loop")
_LAUNCHES = {"fused": 0, "default": 1, "foreach": 1, "loop": 2}  # more kernels per optimizer step, in order

KNOB = Knob(
    name="optimizer_impl",
    default="default",
    read=one_of(OPTIMIZER_IMPLS),
    help="Implementation of a named optimizer. default is PyTorch's choice, which is foreach on a GPU; loop "
    "updates one parameter after the other.",
    values=OPTIMIZER_IMPLS,
    is_searchable=True,
    of_training=True,
    levers=("fused", "foreach", "loop"),
    never_saving=("foreach",),  # it holds the results of all parameters at once
    leaves=lambda value: {Part.TEMPORARIES: 0.0} if value in ("fused", "loop") else {},
    words={"default": "its usual implementation"},
    cost=Cost(rank=3, of=lambda value, capability: None if capability is None else _LAUNCHES[value]),
)
