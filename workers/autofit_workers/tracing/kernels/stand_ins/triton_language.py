"""Stand-in for `triton.language`, which modules import for kernels that never run in a prediction.

Every public name can be imported. Only dtypes and `constexpr` have a meaning, as Python code computes with
them.
"""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["TRITON_MAX_TENSOR_NUMEL", "__getattr__", "constexpr", "dtype"]

TRITON_MAX_TENSOR_NUMEL = 1048576
_DTYPES = frozenset({
    "void", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "float8e5", "float8e5b16", "float8e4nv", "float8e4b8", "float8e4b15",
})  # fmt: skip


class dtype:  # noqa: N801 - Triton's name
    """Number type of Triton, such as float16."""

    SINT_TYPES = ("int8", "int16", "int32", "int64")
    UINT_TYPES = ("int1", "uint8", "uint16", "uint32", "uint64")
    FP_TYPES = ("fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64")

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"triton.language.{self.name}"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def primitive_bitwidth(self) -> int:
        """Number of bits of a value of this number type."""
        digits = (
            self.name.removeprefix("bfloat").removeprefix("float").removeprefix("uint").removeprefix("int")
        )
        return int(digits.partition("e")[0] or 0)


class constexpr:  # noqa: N801 - Triton's name
    """Compile-time constant of a Triton kernel, which supports arithmetic."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _value(other))


def _value(number: Any) -> Any:
    return number.value if isinstance(number, constexpr) else number


def _reckon(name: str) -> None:
    function = getattr(operator, name)
    setattr(constexpr, name, lambda self, other: constexpr(function(self.value, _value(other))))
    if name not in ("__lt__", "__le__", "__gt__", "__ge__", "__ne__"):
        swapped = f"__r{name.removeprefix('__')}"
        setattr(constexpr, swapped, lambda self, other: constexpr(function(_value(other), self.value)))


for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "and", "or", "lshift", "rshift"):
    _reckon(f"__{_name}__")
for _name in ("lt", "le", "gt", "ge", "ne"):
    _reckon(f"__{_name}__")


class Name:
    """Stand-in for any other name of Triton's language, such as `load`."""

    def __init__(self, *names: Any) -> None:
        self._name = ".".join(str(each) for each in names[:1])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Name(f"{self._name}.{name}")

    def __call__(self, *args: Any, **_options: Any) -> Any:
        """Returns a decorated function unchanged; any other call returns a `Name`."""
        return args[0] if len(args) == 1 and callable(args[0]) else Name(f"{self._name}()")

    def __getitem__(self, _key: Any) -> Any:
        return self

    def __or__(self, _other: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __repr__(self) -> str:
        return f"triton.language.{self._name}"


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return dtype(name) if name in _DTYPES else Name(name)
