"""View `tensors`: every allocation of a step with its name, shape and lifetime."""

from __future__ import annotations

import bisect
import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass

from autofit.explain.profile import Profile
from autofit.explain.sizes import Sizes, element_bytes
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import Selection, select
from autofit.explain.views.view import View, listed
from autofit_workers.spec.trace import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """Row of the view `tensors`: one allocation, with its tensor and its lifetime.

    Attributes:
        name: name in model and optimizer, or the path of the module, the operator and the number
            of its result: `features.0/convolution:0`; `:workspace` for memory besides its results.
        category: what the memory is: `activation`, `parameter`, `workspace`, …
        variable: name that Python code binds it to; empty for a temporary without a name.
        shape: shape of the tensor that it was made for; empty if it is no tensor.
        num_elements, element_bytes: elements of that tensor, and bytes of each; if it is no tensor, each byte
            counts as an element.
        born, freed: phases in which it was made and freed, `step 2 forward`; empty if it is never freed.
        birth, death: numbers of memory events before it was made and freed; the number of all events if never
            freed.
    """

    name: str
    category: str
    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    element_bytes: int
    sizes: Sizes
    variable: str
    born: str
    freed: str
    birth: int
    death: int


def tensor_view(profile: Profile, filters: Filters) -> View[TensorRow]:
    """View with one row for each allocation of a step; `view()`s of tensors own no memory and have no row.

    Raises:
        UsageError: there is no such step, nothing matches the filters, or rows are to be ordered by time.
    """
    filters.require_no_seconds("tensors")
    selection = select(profile, filters)
    rows = filters.ordered(_rows(selection))
    return listed("tensors", selection, rows, filters)


def _names(selection: Selection) -> dict[int, str]:
    """Name of each selected allocation, by its number, such as `features.0/convolution_1:0`.

    The `_1` stands for the second call of the operator in the module and step, the `:0` for its first result.
    """
    trace = selection.profile.trace
    positions = [call.position for call in trace.calls]
    num_calls: collections.Counter[tuple[int, str]] = collections.Counter()
    calls: dict[tuple[int, int, str], int] = {}
    num_results: collections.Counter[tuple[int, int, str]] = collections.Counter()
    names: dict[int, str] = {}
    for number in selection.numbers:
        allocation = trace.allocations[number]
        base = "/".join(filter(None, (allocation.module, allocation.operator.removeprefix("aten."))))
        step = selection.birth(number).step
        # The last call at or before its birth made it, as calls without events of their own come earlier.
        call = (step, bisect.bisect_right(positions, selection.lives.births[number]) - 1, base)
        if call not in calls:
            calls[call] = num_calls[step, base]
            num_calls[step, base] += 1
        again = f"_{calls[call]}" if calls[call] else ""
        result = "workspace"
        if allocation.category is not Category.WORKSPACE:
            result = str(num_results[call])
            num_results[call] += 1
        names[number] = allocation.name or f"{base}{again}:{result}"
    return names


def _rows(selection: Selection) -> Iterator[TensorRow]:
    """Yields a row for each selected allocation."""
    profile = selection.profile
    names = _names(selection)
    variables = _variables(profile)
    for number in selection.numbers:
        allocation = profile.trace.allocations[number]
        sizes = selection.sizes((number,))
        is_tensor = bool(allocation.dtype)
        yield TensorRow(
            name=names[number],
            category=allocation.category.value,
            dtype=allocation.dtype,
            shape=allocation.shape,
            num_elements=math.prod(allocation.shape) if is_tensor else sizes.requested_bytes,
            element_bytes=element_bytes(allocation.dtype) or 1,
            sizes=sizes,
            variable="" if allocation.name else variables.get(number, ""),
            born=selection.birth(number).label,
            freed="" if (death := selection.death(number)) is None else death.label,
            birth=selection.lives.births[number],
            death=selection.lives.deaths[number],
        )


def _variables(profile: Profile) -> dict[int, str]:
    """Python variable name that each allocation is first bound to, by the allocation's index."""
    variables: dict[int, str] = {}
    for call in profile.trace.calls:
        if call.name:
            for number in call.outputs:
                variables.setdefault(number, call.name)
    return variables
