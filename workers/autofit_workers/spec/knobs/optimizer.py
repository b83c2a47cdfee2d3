"""The knob `optimizer`: an optimizer by name, in place of the workload's own.

`NAMED` is the table of all names, with class, library and implementations. To add an optimizer, give it a
line there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit_workers.spec.knobs.knob import Knob, Part, one_of, or_none
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS

_WITHOUT_FUSED = tuple(name for name in OPTIMIZER_IMPLS if name != "fused")
_ITS_OWN = ("default",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOptimizer:
    """Optimizer that can be named by the option `--optimizer`, with its class and arguments.

    Attributes:
        path: path of its class, from its library on: `torch.optim.Adam`.
        options: arguments that the name stands for; all others are the library's defaults.
        implementations: members of `OPTIMIZER_IMPLS` that it has on a GPU.
        distribution: name by which its library is installed; empty for PyTorch's own.
        hidden: arguments for the parameter group of the hidden layers' weights (see
            `autofit_workers.workload.hidden_weights`); empty if all parameters are treated alike.
        rest: path of the class of a second optimizer for all other parameters, if this one takes only the
            weights of hidden layers; else empty.
        states: approximate bytes of its states for each byte of gradients in float32.
        same_rule_as: names of optimizers with the same update, whose states have more bits.
        left_out: sentence on a part of its step that is not predicted; empty for none.
    """

    path: str
    options: Mapping[str, object] = field(default_factory=dict)
    implementations: tuple[str, ...] = _ITS_OWN
    distribution: str = ""
    hidden: Mapping[str, object] = field(default_factory=dict)
    rest: str = ""
    states: float = 2.0
    same_rule_as: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def library(self) -> str:
        """Name of the package that has the optimizer."""
        return self.path.partition(".")[0]

    @property
    def tells_hidden_weights(self) -> bool:
        """Whether the optimizer treats the weights of hidden layers differently from the rest."""
        return bool(self.hidden or self.rest)


_BITSANDBYTES = "bitsandbytes"
_OF_ADAM = ("adam", "adamw")
NAMED: dict[str, NamedOptimizer] = {
    "sgd": NamedOptimizer(path="torch.optim.SGD", implementations=OPTIMIZER_IMPLS, states=0.0),
    "sgd-momentum": NamedOptimizer(
        path="torch.optim.SGD", options={"momentum": 0.9}, implementations=OPTIMIZER_IMPLS, states=1.0
    ),
    "adam": NamedOptimizer(path="torch.optim.Adam", implementations=OPTIMIZER_IMPLS),
    "adamw": NamedOptimizer(path="torch.optim.AdamW", implementations=OPTIMIZER_IMPLS),
    # RMSprop has no fused kernel, and that of Adagrad is for the CPU alone (torch/optim/adagrad.py).
    "rmsprop": NamedOptimizer(path="torch.optim.RMSprop", implementations=_WITHOUT_FUSED, states=1.0),
    "adagrad": NamedOptimizer(path="torch.optim.Adagrad", implementations=_WITHOUT_FUSED, states=1.0),
    # For a matrix it keeps one row and one column as states.
    "adafactor": NamedOptimizer(path="torch.optim.Adafactor", implementations=_WITHOUT_FUSED, states=0.01),
    # "Other parameters, such as bias, and embedding, should be optimized by a standard method such as AdamW"
    # (documentation of torch.optim.Muon).
    "muon": NamedOptimizer(path="torch.optim.Muon", rest="torch.optim.AdamW", states=1.2),
    "lion": NamedOptimizer(path="bitsandbytes.optim.Lion", distribution=_BITSANDBYTES, states=1.0),
    "lion8bit": NamedOptimizer(
        path="bitsandbytes.optim.Lion8bit", distribution=_BITSANDBYTES, states=0.25, same_rule_as=("lion",)
    ),
    "adamw8bit": NamedOptimizer(
        path="bitsandbytes.optim.AdamW8bit", distribution=_BITSANDBYTES, states=0.5, same_rule_as=_OF_ADAM
    ),
    "paged-adamw8bit": NamedOptimizer(
        path="bitsandbytes.optim.PagedAdamW8bit",
        distribution=_BITSANDBYTES,
        states=0.5,
        same_rule_as=_OF_ADAM,
    ),
    # The README's example: gradients projected to 128 dimensions, with a new projection every 200 steps.
    "galore-adamw": NamedOptimizer(
        path="galore_torch.GaLoreAdamW",
        options={"no_deprecation_warning": True},
        distribution="galore-torch",
        hidden={"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
        states=0.4,
        left_out="cuSOLVER's own workspace, when gradients are decomposed, is not known and left out",
    ),
    "adamw8bit-torchao": NamedOptimizer(
        path="torchao.optim.AdamW8bit", distribution="torchao", states=0.5, same_rule_as=_OF_ADAM
    ),
    "adamw4bit-torchao": NamedOptimizer(
        path="torchao.optim.AdamW4bit", distribution="torchao", states=0.25, same_rule_as=_OF_ADAM
    ),
    # Besides weights in half precision it keeps the rounding errors of their updates, in place of master
    # weights in float32. Its Triton kernel does the same without the temporaries of one parameter at a time.
    "adamw-kahan": NamedOptimizer(
        path="optimi.AdamW",
        options={"lr": 1e-3, "kahan_sum": True, "triton": False},
        distribution="torch-optimi",
        states=3.0,
    ),
}
OPTIMIZERS = tuple(NAMED)
_FEW_STATES = 0.5  # bytes for each byte of gradients: levers for short memory keep no more than this


def _leaves(value: str | None) -> dict[Part, float]:
    """Factor by which an optimizer shrinks the temporaries of its step: 0 for libraries other than PyTorch.

    Such libraries step the parameters one by one. Empty, which means all of it, for PyTorch's optimizers.

    Args:
        value: a value of the option `--optimizer`; None for the workload's own.
    """
    is_of_torch = value is None or NAMED[value].library == "torch"
    return {} if is_of_torch else {Part.TEMPORARIES: 0.0}


KNOB = Knob(
    name="optimizer",
    default=None,
    read=or_none(one_of(OPTIMIZERS)),
    help=f"Use this optimizer instead of the workload's own: {', '.join(OPTIMIZERS)}.",
    values=OPTIMIZERS,
    metavar="NAME",
    is_searchable=True,
    is_common=True,
    of_training=True,
    # Those with the most states come first, because they are closest to optimizers that keep two.
    levers=tuple(
        sorted(
            (name for name, named in NAMED.items() if named.states <= _FEW_STATES),
            key=lambda name: -NAMED[name].states,
        )
    ),
    degrees={"adamw4bit-torchao": 1},
    leaves=_leaves,
    words={None: "the workload's optimizer"},
)
