"""Display names of knob settings in sentences and tables."""

from __future__ import annotations

from collections.abc import Container, Iterable

from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.parallel_kinds import PARALLEL_KINDS
from autofit_workers.spec.setup import WORST, Parallel


def in_words(knob: str, value: object) -> str:
    """Text that shows the value of a knob: `amp-bf16`, `checkpointing blocks`.

    Args:
        knob: name of the knob, a field of `Knobs`.
        value: value of the knob.
    """
    return KNOBS[knob].in_words(value)


def varied_knobs(settings: Iterable[Knobs]) -> tuple[str, ...]:
    """Names of the knobs whose values are not the same in all given settings, in the order of `Knobs`."""
    settings = tuple(settings)
    return tuple(name for name in KNOBS if len({getattr(knobs, name) for knobs in settings}) > 1)


def setting_names(settings: Iterable[Knobs], *, convolves: bool = True) -> dict[Knobs, str]:
    """Display names of the knob settings of a search: `cudnn · amp-bf16 · checkpointing blocks`.

    A name has the values of the knobs that differ between the settings, and of the convolution algorithm. If
    there is only one setting and no convolution, its name is empty.

    Args:
        convolves: whether the step has convolutions; else the algorithm is named only if it differs.
    """
    settings = tuple(settings)
    names = dict.fromkeys((*(("conv_algo",) if convolves else ()), *varied_knobs(settings)))
    return {knobs: " · ".join(in_words(name, getattr(knobs, name)) for name in names) for knobs in settings}


def joined(names: Iterable[str]) -> str:
    """Display name for several knob settings (precision, …) with the same result: `cudnn, native · fp32`.

    If the names differ in more than one part, each has a line of its own.

    Args:
        names: names of the settings, as `setting_names` makes them.
    """
    parts = [name.split(" · ") for name in names]
    places = [tuple(dict.fromkeys(place)) for place in zip(*parts, strict=False)]
    if len({len(part) for part in parts}) > 1 or sum(len(place) > 1 for place in places) > 1:
        return "\n".join(" · ".join(part) for part in parts)
    return " · ".join(", ".join(place) for place in places)


def in_short(knobs: Knobs) -> str:
    """Display name of a knob setting: its convolution algorithm, and values that are not the default.

    An example is `cudnn · amp-bf16`.
    """
    default = Knobs()
    changed = (name for name in list(KNOBS)[1:] if getattr(knobs, name) != getattr(default, name))
    return " · ".join(in_words(name, getattr(knobs, name)) for name in ("conv_algo", *changed))


def configuration(
    knobs: Knobs,
    mode: str | None,
    batch_kind: str | None = None,
    parallel: str = "",
    *,
    rank: int = 0,
    searched: Container[str] = (),
    of_script: bool = False,
) -> str:
    """Display name of how a step is run: `fp32 · the workload's optimizer · train`.

    The convolution algorithm is left out. Precision and optimizer are always named, other knobs where they
    are not at their default. For a script, which decides its own settings, only a requested attention
    implementation and the rank are named.

    Args:
        knobs: values of the knobs.
        mode: `train`, `infer` or `generate`; None to leave it out.
        batch_kind: `typical` or `worst` if the workload makes both kinds of batches; else None.
        parallel: text of the parallelism, such as `fsdp:8`; empty for a single process.
        rank: number of the rank, named for a script only.
        searched: names of searched knobs, which are left out as they have no single value.
        of_script: whether the step is that of a user's script.
    """
    default = Knobs()
    ranks = Parallel.named(parallel)
    if of_script or ranks.is_of_script:
        own = "the script's own precision and optimizer"
        is_told = knobs.attention != default.attention and "attention" not in searched
        told = [in_words("attention", knobs.attention)] if is_told else []
        told += [f"rank {rank} of {ranks.num_ranks}"] if ranks else []
        return " · ".join((own, *told))
    others = [name for name in KNOBS if name not in ("conv_algo", "optimizer_impl")]
    parts = {
        name: in_words(name, getattr(knobs, name))
        for name in others
        if name in ("precision", "optimizer") or getattr(knobs, name) != getattr(default, name)
    }
    if knobs.global_batch is not None:
        del parts["grad_accumulation"]  # follows from the global batch
    if knobs.optimizer_impl != "default" and "optimizer_impl" not in searched:
        parts["optimizer"] += f" ({knobs.optimizer_impl})"
    shown = [part for name, part in parts.items() if name not in searched]
    if batch_kind is not None:
        shown.append("worst-case batches" if batch_kind == WORST else f"{batch_kind} batches")
    if parallel:
        shown.append(ranks_in_words(ranks))
    return " · ".join(shown if mode is None else [*shown, mode])


def ranks_in_words(parallel: Parallel) -> str:
    """Phrase for how ranks train together, such as `one of 8 ranks of fully_shard`."""
    kinds = [PARALLEL_KINDS[kind].in_words for kind, _ in parallel.degrees]
    of = kinds[0] if len(kinds) == 1 else str(parallel)
    return f"one of {parallel.num_ranks} {parallel.members} of {of}"


def with_setting(name: str) -> str:
    """Phrase ` with NAME`, such as ` with cudnn`, to be added to a sentence; empty for an empty name.

    Args:
        name: name of a knob setting (convolution algorithm, precision, …).
    """
    return f" with {name}" if name else ""
