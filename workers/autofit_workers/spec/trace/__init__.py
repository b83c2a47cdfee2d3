"""Trace artifact, from which the peak curve and the views of a prediction are made.

parts   parts of a trace: allocations, marks, waits, and the lists of tensors, layers and operators
seen    part of a run that was traced
rows    rows of the trace's document: each string, stack and convolution once
trace   the trace itself, and its document
"""

from __future__ import annotations

from autofit_workers.spec.trace.parts import (
    AS_ASKED,
    COMPILED_STEP,
    CUSPARSE_BUFFER,
    DATA_PARALLEL,
    FORWARD_END,
    GRAPHS_POOL,
    MANAGED_MEMORY,
    SORT_BUFFER,
    AlikeRanks,
    Allocation,
    Assumption,
    BatchCount,
    BatchSource,
    Call,
    Category,
    HostWait,
    ListedLayer,
    ListedTensor,
    Mark,
    Repetition,
    Role,
    SampleSize,
    Scratch,
    TracedModel,
    last_step,
    parameters_in_words,
)
from autofit_workers.spec.trace.rows import (
    BYTES_OF_ROW,
    SHAPE_OF_ROW,
    convolution_from_dict,
    with_rows_apart,
)
from autofit_workers.spec.trace.seen import Lengths, Seen
from autofit_workers.spec.trace.trace import TRACE_SCHEMA, UNPROTECTED, Trace

__all__ = [
    "AS_ASKED",
    "BYTES_OF_ROW",
    "COMPILED_STEP",
    "CUSPARSE_BUFFER",
    "DATA_PARALLEL",
    "FORWARD_END",
    "GRAPHS_POOL",
    "MANAGED_MEMORY",
    "SHAPE_OF_ROW",
    "SORT_BUFFER",
    "TRACE_SCHEMA",
    "UNPROTECTED",
    "AlikeRanks",
    "Allocation",
    "Assumption",
    "BatchCount",
    "BatchSource",
    "Call",
    "Category",
    "HostWait",
    "Lengths",
    "ListedLayer",
    "ListedTensor",
    "Mark",
    "Repetition",
    "Role",
    "SampleSize",
    "Scratch",
    "Seen",
    "Trace",
    "TracedModel",
    "convolution_from_dict",
    "last_step",
    "parameters_in_words",
    "with_rows_apart",
]
