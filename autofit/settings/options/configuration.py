"""Settings of how a workload is run: its knobs, and which knobs are varied."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from autofit.settings import values
from autofit.settings.options.option import Option, Topic, knob_option, parts
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.knobs.knob import switch
from autofit_workers.spec.parallel_kinds import PARALLEL_FORMS
from autofit_workers.spec.releases import followed_release
from autofit_workers.spec.setup import MODES, Parallel, Setup

_setting = partial(Option, topic=Topic.SETTINGS)
_limit = partial(Option, topic=Topic.LIMITS)
_OF_SETUP = {
    "mode": _setting(
        values.one_of(MODES),
        "Train, infer, or generate tokens, instead of the workload's own mode.",
        choices=MODES,
    ),
    "batch_kind": _setting(
        values.batch_kind,
        "Use the largest batches that the data can make, for a workload whose make_batch takes a kind.",
        name="worst-case",
        is_switch=True,
    ),
    "allows_long": _setting(
        switch,
        "Let --seq-len go beyond the positions that the model was made for.",
        name="allow-long",
        is_switch=True,
    ),
    "parallel": _setting(
        lambda value: Parallel.parse(str(value)),
        "One rank of several is predicted; where trials are measured, all run together. "
        + "; ".join(f"{form}: {what}" for form, what in PARALLEL_FORMS.items())
        + ". The batch size is that of one rank, of a pipeline that of a microbatch.",
        metavar="KIND:N",
    ),
    "rank": _setting(
        values.rank,
        "Which rank is predicted, of --parallel or of those that a script's launcher starts; all, of "
        "--parallel: those that differ, and the answer is of the one that needs the most.",
        default="0; all of a pipeline",
        metavar="K|all",
    ),
    "nonzero_share": _setting(
        values.nonzero_share,
        "How much of a tensor a mask is assumed to select whose values nobody has; the range goes up to "
        "all of it.",
        name="assume",
        default="nonzero=0.5",
        metavar="nonzero=SHARE",
    ),
    "torch": _setting(
        lambda value: followed_release(str(value)),
        "Predict another release of PyTorch than the installed one, such as that of the cluster; the answer "
        "says which differences are taken into account.",
        default="the installed one",
        metavar="RELEASE",
    ),
    "allows_network": _limit(
        switch,
        "Let a workload use the network while it is predicted.",
        name="allow-network",
        is_switch=True,
    ),
    "allows_subprocesses": _limit(
        switch,
        "Let a script start any process while it is predicted, also where nothing keeps what that does "
        "from taking effect.",
        name="allow-subprocesses",
        is_switch=True,
    ),
    "kept_variables": _limit(
        values.names,
        "A variable of the environment that a workload gets though it may hold a secret, while it is "
        "predicted. Repeatable.",
        name="keep-env",
        metavar="NAME",
    ),
    "most_host_bytes": _limit(
        values.size,
        "Memory of this machine that a workload may take while it is predicted.",
        name="max-host-memory",
        default="half of what is available",
        metavar="SIZE",
    ),
}


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ConfigurationSettings:
    """Settings of how a workload is run: the knobs (precision, optimizer, …), and which of them are varied.

    Attributes:
        conv_algos: convolution algorithms to choose from; `ALL_CONV_ALGOS` for all that apply, None for the
            policies of the device's own backend, such as cuDNN.
        knobs: values of the knobs that are not searched; the convolution algorithm comes from `conv_algos`.
        given_knobs: names of the knobs that the user set, also if to the default.
        searched: searched knobs by their names in `Knobs`, each with the values to choose from; every
            combination of values and convolution algorithms is one knob setting.
        setup: mode, kind of batches, ranks, and assumptions about values that no GPU has computed.
        parallels: kinds of parallelism to compare, from `--search parallel=…`, in place of the setup's.
    """

    conv_algos: tuple[str, ...] | None = _setting(
        values.conv_algos,
        "Convolution algorithms to choose from; `autofit conv-algos` lists them.",
        name="conv-algo",
        default="what the device's backend has",
        metavar="A,B,…|all",
    ).with_default(None)
    knobs: Knobs = parts(
        Knobs, {name: knob_option(knob) for name, knob in KNOBS.items() if name != "conv_algo"}
    )
    given_knobs: tuple[str, ...] = field(default=(), compare=False)
    searched: tuple[tuple[str, tuple[str | bool, ...]], ...] = _setting(
        values.searched,
        f"Search this knob too, one of {', '.join(values.SEARCHABLE)}. Repeatable: every combination "
        "is a setting, and settings that cannot win are pruned. Of parallel=ddp,fsdp,… the largest batch of "
        "all ranks together wins.",
        name="search",
        is_common=True,
        metavar="KNOB=A,B,…",
        of_search=True,
    ).with_default(())
    setup: Setup = parts(Setup, _OF_SETUP)
    parallels: tuple[Parallel, ...] = ()
