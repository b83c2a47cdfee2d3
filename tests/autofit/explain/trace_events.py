"""Checks of a Chrome trace against the Trace Event Format."""

from __future__ import annotations

from collections import defaultdict


def of_kind(kind, events):
    """Events of one phase type."""
    return [event for event in events if event["ph"] == kind]


def validate(events):
    """Asserts that events follow the Trace Event Format, as far as autofit writes it."""
    wanted = {"M": set(), "C": set(), "i": {"s"}, "X": {"dur", "cat"}}
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name", "args"} | wanted[event["ph"]] == set(event) - {"cname"}
        assert isinstance(event["name"], str)
        assert event["name"]
        for field in {"pid", "tid"} & set(event):
            assert isinstance(event[field], int)
        for field in {"ts", "pid", "tid", "dur"} & set(event):
            assert event[field] >= 0
            assert event[field] == round(event[field], 3)  # whole nanoseconds
    for event in of_kind("C", events):
        assert all(isinstance(value, int) for value in event["args"].values())
    counters, threads = defaultdict(list), defaultdict(list)
    for event in of_kind("C", events):
        counters[event["pid"], event["name"]].append(event["ts"])
    assert all(times == sorted(set(times)) for times in counters.values())
    for event in of_kind("X", events):
        start, duration = round(1000 * event["ts"]), round(1000 * event["dur"])
        threads[event["pid"], event["tid"]].append((start, start + duration))
    for slices in threads.values():
        assert_nested(slices)


def assert_nested(slices):
    """Asserts that of two slices of a thread one lies in the other, or that they do not touch."""
    enclosing = []
    for start, stop in sorted(slices, key=lambda each: (each[0], -each[1])):
        assert start < stop
        while enclosing and enclosing[-1] <= start:
            enclosing.pop()
        assert not enclosing or stop <= enclosing[-1]
        enclosing.append(stop)
