"""Skips most forward passes of text generation in a script, whose memory grows regularly with the cache.

    pass      attention mask   keys of a layer, before → after
    1         8 × 65           8 × 4 × 64 × 32 → 8 × 4 × 65 × 32        run
    2         8 × 66           8 × 4 × 65 × 32 → 8 × 4 × 66 × 32        run
    3         8 × 67           8 × 4 × 66 × 32 → 8 × 4 × 67 × 32        run: grew by the same as before
    4 … 15                                                              skipped: only cache and outputs grow
    19                                                                  run, to record its temporaries
    35, 51 … 131, 149 … 827, 944                                        run, when an eighth of all was skipped

A pass that is run also allocates temporaries, which grow with the cache. Of that growth at most a ninth is
not recorded at the end of a text. In later texts, up to the length of the longest earlier one, the passes
that are run are the first three, then each pass that doubles the number of the last one run, and the last
pass that was run in the longest text.

A pass is skipped only if all numbers in the model's inputs, cache and outputs, such as sizes, have grown by
the same amounts from pass to pass. The cache is any object, of whatever class, that the model is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.pytree import tree_flatten, tree_unflatten

_NUM_SHOWN = 3  # passes needed to see that sizes grew twice by the same amounts
_WHOLE_EVERY = 16  # least number of passes from one that is run to the next
_WHOLE_WITHIN = 8  # at most this fraction of all passes so far, 1/8, is skipped in a row
_PLAIN = (bool, float, str, bytes, type(None), torch.dtype, torch.device, type)
_MOST_DEPTH = 4  # of objects nested in a model's inputs


@dataclass(slots=True)
class _Place:
    """Attribute, key or index at which an object, such as a KV cache, holds a tensor or an integer.

    Attributes:
        holder: the object.
        key: name of the attribute, or key or index.
        value: the tensor or integer.
    """

    holder: Any
    key: Any
    value: Tensor | int

    def put(self, value: Tensor | int) -> None:
        self.value = value
        if isinstance(self.holder, dict | list):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


@dataclass(slots=True)
class _Described:
    """Description of the values that go into or out of a forward pass.

    Attributes:
        fixed: properties that must not change from pass to pass, such as dtypes.
        numbers: sizes of tensors, and integers, which may grow.
    """

    fixed: list[Hashable] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """Adds a value; an object of an unknown type is described by its identity."""
        if isinstance(value, Tensor):
            self.fixed.append((value.dtype, value.device, value.dim(), value.requires_grad))
            self.numbers += value.shape
        elif isinstance(value, int) and not isinstance(value, bool):
            self.fixed.append(int)
            self.numbers.append(value)
        else:
            self.fixed.append(value if isinstance(value, _PLAIN) else id(value))


@dataclass(slots=True)
class _Pass:
    """Description of one forward pass by the sizes and integers in its inputs and outputs.

    Attributes:
        given: numbers in the inputs before the pass.
        left: numbers in the input objects, such as the cache, after the pass.
        returned: numbers in the outputs.
        fixed: properties of the inputs after the pass and of the outputs that must not change.
        leaves: stand-ins for the outputs, from which they are made without running the pass.
        structure: nesting of the outputs.
    """

    given: list[int]
    left: list[int]
    returned: list[int]
    fixed: tuple[Hashable, ...]
    leaves: list[Any]
    structure: Any


@dataclass(slots=True)
class _Series:
    """Successive forward passes of one model with inputs of the same types.

    Attributes:
        passes: the last three passes.
        num_passes: number of passes of the current text so far.
        last_whole: number of the last pass of the current text that was run and not skipped.
        last_of_longest: number of the last pass that was run in the longest earlier text.
    """

    passes: list[_Pass] = field(default_factory=list)
    num_passes: int = 0
    last_whole: int = 0
    last_of_longest: int = 0

    def next_after(self, given: list[int]) -> _Pass | None:
        """Description that the next forward pass would have if sizes grow as in the last three.

        Args:
            given: sizes and integers in the inputs of the next pass.

        Returns:
            The description; None if the passes do not grow evenly, so the pass has to be run.
        """
        if len(self.passes) < _NUM_SHOWN or self._is_to_be_whole(self.num_passes + 1):
            return None
        first, second, last = self.passes[-_NUM_SHOWN:]
        if not first.fixed == second.fixed == last.fixed:
            return None
        given_next = _grown(first.given, second.given, last.given)
        left = _grown(first.left, second.left, last.left)
        returned = _grown(first.returned, second.returned, last.returned)
        if given_next != given or left is None or returned is None:
            return None
        return _Pass(given, left, returned, last.fixed, last.leaves, last.structure)

    def _is_to_be_whole(self, number: int) -> bool:
        unseen = self.num_passes // _WHOLE_WITHIN
        if number <= self.last_of_longest:
            unseen = self.last_whole  # skip as many passes as came before the last one run
        return number == self.last_of_longest or number - self.last_whole >= max(_WHOLE_EVERY, unseen)

    def append(self, shown: _Pass, *, is_whole: bool) -> None:
        begins_again = bool(self.passes) and sum(shown.given) < sum(self.passes[-1].given)
        if begins_again:
            self.last_of_longest = max(self.last_of_longest, self.last_whole)
        self.num_passes = 1 if begins_again else self.num_passes + 1
        if is_whole:
            self.last_whole = self.num_passes
        self.passes = [*self.passes[1 - _NUM_SHOWN :], shown]


class GrowingPasses:
    """Runs a model's forward passes without gradients, such as those that generate tokens with a KV cache.

    Passes are skipped where sizes grow by the same amounts as in the passes before; then only the cache and
    the outputs are made larger.
    """

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}

    def run(
        self,
        module: torch.nn.Module,
        given: tuple[Any, Any],
        run: Callable[[], Any],
        passed: Callable[[], None],
    ) -> Any:
        """Runs a forward pass, or skips it and only grows cache and outputs; returns the model's result.

        Args:
            given: positional and keyword arguments of the model.
            run: calls the model with them.
            passed: called if the pass is skipped.
        """
        leaves, structure = tree_flatten(
            given, is_leaf=lambda value: not isinstance(value, dict | list | tuple)
        )
        objects = [leaf for leaf in leaves if _has_state(leaf)]
        places = [place for each in objects for place in _places(each)]
        if not any(isinstance(place.value, Tensor) for place in places):
            return run()
        before = _Described()
        for value in (*leaves, *(place.value for place in places)):
            before.add(value)
        modes = tuple(each.training for each in module.modules())
        autocast = torch.is_autocast_enabled("cuda")
        kinds = tuple(type(each) if _has_state(each) else None for each in leaves)
        fixed = tuple(
            value
            for value, kind in zip(before.fixed, (*kinds, *(None for _ in places)), strict=True)
            if kind is None
        )
        key = (id(module), modes, autocast, str(structure), kinds, fixed)
        series = self._series.setdefault(key, _Series())
        expected = series.next_after(before.numbers)
        if expected is not None and _fit(places, expected.left):
            passed()
            series.append(expected, is_whole=False)
            _grow(places, expected.left)
            return _made(expected, objects)
        result = run()
        shown = _shown(before, objects, result)
        if shown is not None:
            series.append(shown, is_whole=True)
        return result


def _has_state(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (*_PLAIN, Tensor, torch.nn.Module))


def _places(value: Any, depth: int = 0) -> Iterator[_Place]:
    """Yields where an object, or one nested in it, holds tensors and integers."""
    held: Any = value if isinstance(value, dict | list) else vars(value)
    for key, each in list(held.items() if isinstance(held, dict) else enumerate(held)):
        if isinstance(each, Tensor) or (isinstance(each, int) and not isinstance(each, bool)):
            yield _Place(value, key, each)
        elif depth < _MOST_DEPTH and (isinstance(each, dict | list) or _has_state(each)):
            yield from _places(each, depth + 1)


def _shown(before: _Described, objects: list[Any], result: Any) -> _Pass | None:
    """Description of a forward pass that was run; None if its outputs have types that cannot be made anew."""
    left, returned = _Described(), _Described()
    for place in (place for each in objects for place in _places(each)):
        left.add(place.value)
    own = {id(each): number for number, each in enumerate(objects)}
    leaves, structure = tree_flatten(result, is_leaf=lambda value: id(value) in own)
    kept: list[Any] = []
    for leaf in leaves:
        is_own = id(leaf) in own
        if not (is_own or isinstance(leaf, (Tensor, int, *_PLAIN))):
            return None
        returned.add(own[id(leaf)] if is_own else leaf)
        kept.append(_Own(own[id(leaf)]) if is_own else _Like.of(leaf))
    fixed = (*left.fixed, *returned.fixed, str(structure))
    return _Pass(before.numbers, left.numbers, returned.numbers, fixed, kept, structure)


@dataclass(frozen=True, slots=True)
class _Own:
    """Stand-in for an output of a forward pass that is itself one of the inputs, such as the KV cache.

    Attributes:
        number: index of the input object.
    """

    number: int


@dataclass(frozen=True, slots=True)
class _Like:
    """Stand-in for an output of a forward pass: a tensor of some shape, an integer, or a fixed value.

    Attributes:
        num_numbers: how many of the pass's numbers describe it: a tensor's dimensions, or 1 for an integer.
        dtype, device: those of a tensor; None for other values.
        value: the value of an output that is no tensor.
    """

    num_numbers: int
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    value: Any = None

    @classmethod
    def of(cls, leaf: Any) -> _Like:
        if isinstance(leaf, Tensor):
            return cls(leaf.dim(), leaf.dtype, leaf.device)
        return cls(1 if isinstance(leaf, int) and not isinstance(leaf, bool) else 0, value=leaf)

    def made(self, numbers: list[int]) -> Any:
        if self.dtype is not None:
            return torch.empty(numbers, dtype=self.dtype, device=self.device)
        return numbers[0] if numbers else self.value


def _made(shown: _Pass, objects: list[Any]) -> Any:
    numbers, leaves = list(shown.returned), []
    for leaf in shown.leaves:
        count = 1 if isinstance(leaf, _Own) else leaf.num_numbers
        own, numbers = numbers[:count], numbers[count:]
        leaves.append(objects[leaf.number] if isinstance(leaf, _Own) else leaf.made(own))
    return tree_unflatten(leaves, shown.structure)


def _fit(places: list[_Place], numbers: list[int]) -> bool:
    """Whether `numbers` has an entry for each integer at `places`, and for each dimension of a tensor."""
    return len(numbers) == sum(
        place.value.dim() if isinstance(place.value, Tensor) else 1 for place in places
    )


def _grow(places: list[_Place], numbers: list[int]) -> None:
    """Replaces values at `places` by new tensors and integers of the sizes and values in `numbers`."""
    rest = list(numbers)
    for place in places:
        value = place.value
        if not isinstance(value, Tensor):
            number = rest.pop(0)
            if number != value:
                place.put(number)
            continue
        shape, rest = rest[: value.dim()], rest[value.dim() :]
        if shape != [*value.shape]:
            place.put(torch.empty(shape, dtype=value.dtype, device=value.device))


def _grown(first: list[int], second: list[int], last: list[int]) -> list[int] | None:
    """Next list of numbers if they grow on by the same amounts; None if the two growths so far differ."""
    if not len(first) == len(second) == len(last):
        return None
    growth = [after - before for before, after in zip(second, last, strict=True)]
    if growth != [after - before for before, after in zip(first, second, strict=True)]:
        return None
    return [number + more for number, more in zip(last, growth, strict=True)]
