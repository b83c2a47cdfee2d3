"""Whole trace of a step at any batch size, from traces at two.

Wherever the documents of two traces have different numbers, the trace has a line in the batch size, or for
bytes a product of lines. What else differs, such as a sentence, has no value at other sizes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from autofit_workers.replay.curve.lines.polynomials import (
    Fit,
    Line,
    NotPolynomialError,
    line_through,
    product,
    size_factors,
    value_at,
)
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import BYTES_OF_ROW, SHAPE_OF_ROW, with_rows_apart

Document = Mapping[str, Any]


class TraceLines:
    """Document of a step's trace as a function of the batch size.

    Args:
        first, second: documents of two traces of one workload and one knob setting (values of the training
            options), at different batch sizes.

    Raises:
        NotPolynomialError: the documents differ in more than numbers, or a number is no line with a whole
            slope.
    """

    def __init__(self, first: Document, second: Document) -> None:
        sizes = (first["batch_size"], second["batch_size"])
        if sizes[0] == sizes[1]:
            raise NotPolynomialError(f"both traces are at batch size {sizes[0]}")
        self._fit: Fit[Line] = functools.partial(line_through, sizes)
        # Places whose value depends on the batch size, each with its list or dict and its polynomial.
        self._places: list[tuple[Any, Any, tuple[int, ...]]] = []
        self._document = self._through(first, second)

    @classmethod
    def through(cls, documents: Sequence[Document]) -> Self:
        """Lines through the first two documents, which all others agree with in everything that they say.

        Raises:
            NotPolynomialError: there are no such lines, or a document does not agree with them.
        """
        try:
            return cls._checked(documents)
        except NotPolynomialError:  # takes three times as long, and is seldom needed
            return cls._checked([with_rows_apart(each) for each in documents])

    @classmethod
    def _checked(cls, documents: Sequence[Document]) -> Self:
        lines = cls(*documents[:2])
        for each in documents[2:]:
            if lines._at(each["batch_size"]) != each:
                raise NotPolynomialError(f"the trace at batch size {each['batch_size']} differs")
        return lines

    def text_at(self, batch_size: int) -> str:
        """JSON of the trace at a batch size; `Trace.from_json` reads it."""
        return json.dumps(self._at(batch_size), separators=(",", ":"))

    def _at(self, batch_size: int) -> Any:
        """Document at a batch size, which is changed by the next call."""
        for container, key, polynomial in self._places:
            container[key] = value_at(polynomial, batch_size)
        return self._document

    def _through(self, first: Any, second: Any) -> Any:
        """Copy of a part of the first document, in which the numbers that vary are known as places."""
        if first == second:
            return first
        if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
            copy: Any = dict(first)
            for key in first:
                if key == "allocations":
                    _require_equal_lengths(first[key], second[key])
                    rows = zip(first[key], second[key], strict=True)
                    copy[key] = [self._row_through(*pair) for pair in rows]
                else:
                    self._put(copy, key, first[key], second[key])
            return copy
        if isinstance(first, list) and isinstance(second, list):
            _require_equal_lengths(first, second)
            copy = list(first)
            for index, pair in enumerate(zip(first, second, strict=True)):
                self._put(copy, index, *pair)
            return copy
        raise NotPolynomialError(f"{first!r} and {second!r}")

    def _put(self, copy: Any, key: Any, first: Any, second: Any) -> None:
        if type(first) is type(second) is int and first != second:
            self._places.append((copy, key, self._fit((first, second))))
        else:
            copy[key] = self._through(first, second)

    def _row_through(self, first: list[Any], second: list[Any]) -> list[Any]:
        """Row of an allocation, whose bytes are a product of its dimensions, as those of a B×B tensor."""
        if first == second:
            return first
        _require_equal_lengths(first, second)
        copy = list(first)
        for index, pair in enumerate(zip(first, second, strict=True)):
            if index != BYTES_OF_ROW:
                self._put(copy, index, *pair)
        shapes = [tuple(row[SHAPE_OF_ROW]) for row in (first, second)]
        factors = size_factors(self._fit, shapes, [row[BYTES_OF_ROW] for row in (first, second)])
        self._places.append((copy, BYTES_OF_ROW, product(factors)))
        return copy


def _require_equal_lengths(first: list[Any], second: list[Any]) -> None:
    if len(first) != len(second):
        raise NotPolynomialError(f"lists of {len(first)} and {len(second)}")
