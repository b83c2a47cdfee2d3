"""The data types of what a rank computes whose layers are spread over others."""

from __future__ import annotations

from collections import Counter

import pytest

from autofit_workers.spec.trace import Trace
from tests.workers.tracing.recording.test_sharding import trace_of

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm")


def types_of_products(trace: Trace) -> Counter[str]:
    """How many products of matrices came in each data type; workspaces have none."""
    return Counter(a.dtype for a in trace.allocations if a.operator in PRODUCTS and a.dtype)


@pytest.mark.parametrize(
    ("name", "precision", "dtype"),
    [
        ("perceptrons", "amp-bf16", "bfloat16"),
        ("perceptrons", "amp-fp16", "float16"),
        ("llama", "amp-bf16", "bfloat16"),
    ],
)
def test_autocast_reaches_the_products_of_layers_that_are_spread(name, precision, dtype):
    alone, spread = (
        types_of_products(trace_of(name, parallel, precision=precision)) for parallel in ("ddp:1", "tp:2")
    )
    assert set(alone) == {dtype}
    assert spread == alone
