"""History of a real allocator, action by action, in the place of the simulated one's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autofit_workers.replay.allocator import Action, ActionKind, History, SegmentBlock
from autofit_workers.replay.allocator import Segment as HeldSegment
from autofit_workers.replay.allocator.settings import SMALL_SEGMENT_BYTES
from autofit_workers.replay.snapshots import Segment
from autofit_workers.replay.snapshots.layout import Layout
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self

_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Actions of a real run's allocator, by the number of the profile's event.

    Attributes:
        is_exact: whether segments and blocks can be followed at their addresses; if not, only sums are known.
    """

    actions: tuple[Action, ...]
    is_exact: bool

    def history(self, position: int | None) -> History:
        """Actions up to a position, and the segments that they leave; none where only sums are known.

        Args:
            position: number of events; None for all.
        """
        actions = self.actions
        if position is not None:
            actions = tuple(action for action in actions if action.position < position)
        reserved = allocated = most_reserved = most_allocated = 0
        for action in actions:
            reserved += action.kind.reserves * action.num_bytes
            if action.kind is ActionKind.ALLOC:
                allocated += action.num_bytes
            elif action.kind is ActionKind.FREE_COMPLETED:
                allocated -= action.num_bytes
            most_reserved, most_allocated = max(most_reserved, reserved), max(most_allocated, allocated)
        layout, requests = layout_after(actions) if self.is_exact else (Layout(), {})
        return History(
            actions=actions,
            segments=tuple(map(_held, layout.in_order())),
            requests=requests,
            peak_allocated_bytes=most_allocated,
            peak_reserved_bytes=most_reserved,
        )

    def to_plain(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        rows = [
            [each.kind.value, each.position, each.address, each.num_bytes, each.request, each.stream]
            for each in self.actions
        ]
        return {"is_exact": self.is_exact, "actions": rows}

    @classmethod
    def from_plain(cls, data: Any, *, num_events: int, num_requests: int) -> Self:
        """Actions from the plain data that `to_plain` made.

        Raises:
            ValueError, TypeError, KeyError: the data is of another kind, or contradicts itself.
        """
        actions, total, last = [], 0, 0
        for kind, position, address, num_bytes, request, stream in data["actions"]:
            action = Action(
                ActionKind(kind),
                from_plain(int, position),
                from_plain(int, address),
                from_plain(int, num_bytes),
                None if request is None else from_plain(int, request),
                from_plain(int, stream),
            )
            total += action.num_bytes
            is_known = action.request is None or 0 <= action.request < num_requests
            if not (last <= action.position < num_events and is_known and action.num_bytes >= 0):
                raise ValueError("a recorded action is of no event")
            last = action.position
            actions.append(action)
        if total > _MOST_BYTES:
            raise ValueError("its sizes add up to more than can be addressed")
        found = cls(actions=tuple(actions), is_exact=from_plain(bool, data["is_exact"]))
        found.history(None)
        return found


def layout_after(actions: Iterable[Action], position: int | None = None) -> tuple[Layout, dict[int, int]]:
    """Segments with their blocks after the first `position` events, and each block's request by address.

    Raises:
        ValueError: an action contradicts those before it.
    """
    layout, requests = Layout(), dict[int, int]()
    for action in actions:
        if position is not None and action.position >= position:
            break
        if action.kind is ActionKind.SEGMENT_ALLOC:
            is_small = action.num_bytes <= SMALL_SEGMENT_BYTES
            layout.add(Segment(action.address, action.num_bytes, is_small, action.stream))
        elif action.kind is ActionKind.SEGMENT_FREE:
            layout.remove(action.address, action.num_bytes)
        elif action.kind is ActionKind.ALLOC and action.request is not None:
            layout.put(layout.at(action.address), action.address, action.num_bytes)
            requests[action.address] = action.request
        elif action.kind is ActionKind.FREE_COMPLETED:
            layout.take(layout.at(action.address), action.address)
            requests.pop(action.address, None)
    return layout, requests


def _held(segment: Segment) -> HeldSegment:
    blocks = tuple(
        SegmentBlock(offset=address - segment.address, size=size, is_allocated=not is_free)
        for address, size, is_free in segment.blocks()
    )
    return HeldSegment(
        address=segment.address,
        size=segment.size,
        stream=segment.stream,
        pool="small" if segment.is_small else "large",
        blocks=blocks,
    )
