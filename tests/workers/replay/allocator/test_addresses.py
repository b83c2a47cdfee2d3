from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator.addresses import AddressSpace


@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 5]), st.booleans()), max_size=40))
def test_ranges_never_overlap_and_are_the_lowest_that_fit(steps: list[tuple[int, int, bool]]) -> None:
    space = AddressSpace()
    held: list[tuple[int, int]] = []
    for num_bytes, alignment, frees in steps:
        if frees and held:
            space.release(*held.pop(num_bytes % len(held)))
            continue
        address = space.reserve(num_bytes, alignment=alignment)
        fitting = (
            start
            for start in range(0, address + 1, alignment)
            if all(a + n <= start or start + num_bytes <= a for a, n in held)
        )
        assert address == next(fitting)
        held.append((address, num_bytes))


def test_released_neighbours_become_one_range() -> None:
    space = AddressSpace()
    first, second, third = (space.reserve(10, alignment=1) for _ in range(3))
    space.reserve(10, alignment=1)
    for address in (first, third, second):
        space.release(address, 10)

    assert space.reserve(30, alignment=1) == 0
