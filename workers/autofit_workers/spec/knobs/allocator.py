"""The knob `allocator`: settings of PyTorch's CUDA caching allocator."""

from __future__ import annotations

import importlib.metadata

from autofit_workers.spec.knobs.knob import Knob, number_after, one_of
from autofit_workers.spec.versions import parse_release

CONF_VARIABLE, FORMER_CONF_VARIABLE = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
NEW_NAME_SINCE = (2, 9)  # before, PyTorch reads PYTORCH_CUDA_ALLOC_CONF alone (c10/core/AllocatorConfig.h)
# Value of PYTORCH_ALLOC_CONF for each value of the knob.
ALLOCATORS = {"default": "", "expandable_segments": "expandable_segments:True"}
ALLOCATOR_NAMES = (*ALLOCATORS, "max_split:N")
_LEAST_SPLIT_MIB = 21  # more than a large segment has (c10/core/AllocatorConfig.cpp)


def allocator_conf(name: str) -> str:
    """Value of `PYTORCH_ALLOC_CONF` for a value of the option `--allocator`; empty for `default`.

    Args:
        name: the value, such as `expandable_segments` or `max_split:128`.

    Raises:
        ValueError: the option has no such value, or its number is missing or wrong.
    """
    kind, least_mib = _parse(name)
    return ALLOCATORS[kind] if least_mib is None else f"max_split_size_mb:{least_mib}"


def allocator_of(conf: str) -> str | None:
    """Value of `--allocator` that sets the same as a value of `PYTORCH_ALLOC_CONF`; None if there is none."""
    plain = "".join(conf.split()).strip(",")
    split = plain.removeprefix("max_split_size_mb:")
    named = f"max_split:{split}" if split != plain else {v: k for k, v in ALLOCATORS.items()}.get(plain)
    try:
        return None if named is None else _read(named)
    except ValueError:
        return None


def _parse(name: str) -> tuple[str, int | None]:
    kind, _, digits = name.partition(":")
    if kind != "max_split":
        return one_of(ALLOCATOR_NAMES)(name), None
    return kind, number_after(name, digits, "MiB", example=128, minimum=_LEAST_SPLIT_MIB)


def _read(value: object) -> str:
    kind, least_mib = _parse(str(value))
    return kind if least_mib is None else f"{kind}:{least_mib}"


def conf_variable(torch_version: str | None = None) -> str:
    """Environment variable with which a release of PyTorch configures its CUDA allocator.

    Args:
        torch_version: version of PyTorch; None for the installed one.
    """
    release = parse_release(torch_version or importlib.metadata.version("torch"))
    return CONF_VARIABLE if release >= NEW_NAME_SINCE else FORMER_CONF_VARIABLE


def script_lines(value: str, torch_version: str | None = None) -> tuple[str, ...]:
    """Lines of Python that set the allocator in a script; none for `default`.

    Args:
        value: value of the option `--allocator`.
        torch_version: version of PyTorch that will run; None for the installed one.
    """
    conf, variable = allocator_conf(value), conf_variable(torch_version)
    return (f'os.environ["{variable}"] = "{conf}"  # before torch is imported',) if conf else ()


KNOB = Knob(
    name="allocator",
    default="default",
    read=_read,
    help="Settings of PyTorch's CUDA allocator: expandable segments, or never split blocks of N MiB or more.",
    values=ALLOCATOR_NAMES,
    examples=("default", "expandable_segments", "max_split:128"),
    is_searchable=True,
    levers=("default", "expandable_segments"),
    words={"default": "the allocator's defaults"},
    phrase="allocator {}",
    script_lines=script_lines,
)
