"""Options of `autofit tune` for how a workload is run: its knobs, and which knobs are varied."""

from __future__ import annotations

from autofit.settings import values
from autofit.settings.options.option import SETUP, Option, Topic, knob_option
from autofit_workers.spec.knobs import KNOBS
from autofit_workers.spec.knobs.knob import switch
from autofit_workers.spec.parallel_kinds import PARALLEL_FORMS
from autofit_workers.spec.setup import MODES, Parallel

CONFIGURATION = (
    Option(
        name="conv-algo",
        topic=Topic.SETTINGS,
        field="conv_algos",
        read=values.conv_algos,
        help="Convolution algorithms to choose from; `autofit conv-algos` lists them.",
        default="what the device's backend has",
        metavar="A,B,…|all",
    ),
    *(knob_option(knob) for knob in KNOBS.values() if knob.name != "conv_algo"),
    Option(
        name="search",
        topic=Topic.SETTINGS,
        is_common=True,
        field="searched",
        read=values.searched,
        help=f"Search this knob too, one of {', '.join(values.SEARCHABLE)}. Repeatable: every combination "
        "is a setting, and settings that cannot win are pruned. Of parallel=ddp,fsdp,… the largest batch of "
        "all ranks together wins.",
        metavar="KNOB=A,B,…",
        of_search=True,
    ),
    Option(
        name="mode",
        topic=Topic.SETTINGS,
        field=SETUP + "mode",
        read=values.one_of(MODES),
        help="Train, infer, or generate tokens, instead of the workload's own mode.",
        choices=MODES,
    ),
    Option(
        name="worst-case",
        topic=Topic.SETTINGS,
        field=SETUP + "batch_kind",
        read=values.batch_kind,
        help="Use the largest batches that the data can make, for a workload whose make_batch takes a kind.",
        is_switch=True,
    ),
    Option(
        name="allow-long",
        topic=Topic.SETTINGS,
        field=SETUP + "allows_long",
        read=switch,
        help="Let --seq-len go beyond the positions that the model was made for.",
        is_switch=True,
    ),
    Option(
        name="parallel",
        topic=Topic.SETTINGS,
        field=SETUP + "parallel",
        read=lambda value: Parallel.parse(str(value)),
        help="One rank of several is predicted; where trials are measured, all run together. "
        + "; ".join(f"{form}: {what}" for form, what in PARALLEL_FORMS.items())
        + ". The batch size is that of one rank, of a pipeline that of a microbatch.",
        metavar="KIND:N",
    ),
    Option(
        name="rank",
        topic=Topic.SETTINGS,
        field=SETUP + "rank",
        read=values.rank,
        help="Which rank is predicted, of --parallel or of those that a script's launcher starts; all, of "
        "--parallel: those that differ, and the answer is of the one that needs the most.",
        default="0; all of a pipeline",
        metavar="K|all",
    ),
    Option(
        name="assume",
        topic=Topic.SETTINGS,
        field=SETUP + "nonzero_share",
        read=values.nonzero_share,
        help="How much of a tensor a mask is assumed to select whose values nobody has; the range goes up to "
        "all of it.",
        default="nonzero=0.5",
        metavar="nonzero=SHARE",
    ),
)
