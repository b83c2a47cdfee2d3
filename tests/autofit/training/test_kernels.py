"""Operators that users register: names, and what stands in two places."""

from __future__ import annotations

import pytest

import autofit
from autofit.errors import UsageError


@pytest.mark.parametrize(
    "name", ["attend", "mine.attend", "mine::", "::attend", "mine::at tend", "mine::a.b.c", 7]
)
def test_what_is_no_name_of_an_operator_is_refused(name: object) -> None:
    with pytest.raises(UsageError, match=r"write it as torch\.ops has it, library::operator"):
        autofit.register_kernel(name)  # type: ignore[arg-type]


def test_pytorchs_own_are_known() -> None:
    with pytest.raises(UsageError, match="aten::mm is PyTorch's own"):
        autofit.register_kernel("aten::mm")


def test_a_number_in_place_of_a_function_is_refused() -> None:
    with pytest.raises(UsageError, match="scratch of mine::number must be a function"):
        autofit.register_kernel("mine::number", scratch=4096)  # type: ignore[arg-type]


def test_an_operator_is_registered_once() -> None:
    autofit.register_kernel("mine::twice")
    with pytest.raises(
        UsageError, match=r"mine::twice is registered already, at .*test_kernels\.py:\d+: keep"
    ):
        autofit.register_kernel("mine::twice", scratch=lambda: 0)


def test_a_file_that_is_run_again_registers_again() -> None:
    code = compile("import autofit\nautofit.register_kernel('mine::again')", "again.py", "exec")
    for _ in range(2):
        exec(code, {"__file__": "again.py"})
