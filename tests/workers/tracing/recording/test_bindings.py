"""What a result is bound to, for the ways in which Python code can take one."""

from __future__ import annotations

import contextlib
import sys

import pytest

from autofit_workers.tracing.recording.bindings import Bindings

BINDINGS = Bindings()
FOUND: list[str] = []


def run_operator(*_values):
    """Stands for an operator: notes what its result will be bound to."""
    FOUND.append(BINDINGS.name_of(sys._getframe(1)))
    return (1, 2)


class Owner:
    weight = None


def assigned():
    y = run_operator()
    del y


def augmented():
    y = ()
    y += run_operator()


def chained():
    a = b = run_operator()
    del a, b


def unpacked():
    first, second = run_operator()
    del first, second


def nested():
    y = run_operator(run_operator())
    del y


def expression():
    y = (run_operator(), 3)
    del y


def dropped():
    run_operator()


def attribute():
    owner = Owner()
    owner.weight = run_operator()


def enclosed():
    y = run_operator()
    return lambda: y


def _returning():
    return run_operator()


def _returning_from_with():
    with contextlib.nullcontext():
        return run_operator()


def _returning_a_name(flag=True):
    if flag:  # noqa: SIM108 - the jump to the return is what is tried
        inner = run_operator()
    else:
        inner = None
    return inner


def _returning_one_of_two():
    inner = run_operator()
    return inner, 1


def returned():
    outer = _returning()
    del outer


def returned_from_with():
    outer = _returning_from_with()
    del outer


def returned_name():
    outer = _returning_a_name()
    del outer


def returned_and_dropped():
    _returning_a_name()


def returned_with_more():
    outer, _ = _returning_one_of_two()
    del outer


def in_a_condition():
    y = run_operator() if FOUND is not None else ()
    del y


def walrus():
    if y := run_operator():
        del y


def listed():
    return [run_operator() for _ in range(2)]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (assigned, ["y"]),
        (chained, ["a, b"]),
        (unpacked, ["first, second"]),
        (nested, ["", "y"]),
        (expression, [""]),
        (dropped, [""]),
        (attribute, ["weight"]),
        (enclosed, ["y"]),
        (returned, ["outer"]),
        (returned_from_with, ["outer"]),
        (returned_name, ["outer"]),
        (returned_and_dropped, [""]),
        (returned_with_more, ["inner"]),
        (in_a_condition, ["y"]),
        (walrus, ["y"]),
        (listed, ["", ""]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_result_gets_the_name_that_its_caller_stores_it_under(code, names):
    FOUND.clear()
    code()
    assert names == FOUND


def test_a_name_at_module_level_is_found_too():
    FOUND.clear()
    exec(compile("total = run_operator()", "some.py", "exec"), {"run_operator": run_operator})
    assert FOUND == ["total"]
