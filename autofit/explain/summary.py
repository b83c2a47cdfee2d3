"""Summary of a model in the style of torchsummary: output shapes and parameters of every layer.

It follows the rules of torchsummary 1.5.1 (github.com/sksq96/pytorch-summary, `torchsummary.py`), so that
both agree to the digit:

    layers      every call of every module, except `nn.Sequential` and the model itself
    parameters  elements of a module's `weight` and `bias`, once a call
    bytes       4 an element, whatever its type; outputs twice, for their gradients
    MB          1024² bytes

A summary adds rules for other cases: a model that is a single layer lists that layer;
several tensors that a layer returns are added; and if a model consists of branches that each
take a part of the batch, every branch is summarized as a model of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autofit_workers.spec.trace import ListedLayer, Role, Trace

ELEMENT_BYTES = 4
OUTPUT_COPIES = 2  # an output and its gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """Row of a layer summary in the style of torchsummary: one call of a layer.

    Attributes:
        name: the layer's class and the row's number, `Conv2d-1`.
        layer: module, shapes and parameters of the call, as the traced step recorded them.
    """

    name: str
    layer: ListedLayer

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.layer.output_shapes

    @property
    def num_parameters(self) -> int:
        return self.layer.num_weights

    @property
    def num_elements(self) -> int:
        """Number of elements of all output tensors of the call."""
        return sum(map(math.prod, self.layer.output_shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPart:
    """Layer summary in the style of torchsummary, of a whole model or of one branch of it.

    A branch is one of several submodules that each take the model's inputs.

    Attributes:
        name: path of the branch; empty for the whole model.
        module_type: class of the model or branch.
        inputs: indices of the allocations that hold its inputs.
    """

    name: str
    module_type: str
    rows: tuple[SummaryRow, ...]
    inputs: tuple[int, ...]
    num_input_elements: int

    @property
    def num_parameters(self) -> int:
        return sum(row.num_parameters for row in self.rows)

    @property
    def input_bytes(self) -> int:
        return ELEMENT_BYTES * self.num_input_elements

    @property
    def forward_backward_bytes(self) -> int:
        """Bytes of all layers' outputs and their gradients, counted as torchsummary does.

        Each output counts twice, with 4 bytes for each element.
        """
        return OUTPUT_COPIES * ELEMENT_BYTES * sum(row.num_elements for row in self.rows)

    @property
    def parameter_bytes(self) -> int:
        return ELEMENT_BYTES * self.num_parameters

    @property
    def total_bytes(self) -> int:
        return self.input_bytes + self.forward_backward_bytes + self.parameter_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Layer summary in the style of torchsummary, in one part, or in a part for each branch of the model.

    Branches are several submodules that each take the model's inputs.
    """

    workload: str
    batch_size: int
    parts: tuple[SummaryPart, ...]

    @property
    def rows(self) -> tuple[SummaryRow, ...]:
        return tuple(itertools.chain.from_iterable(part.rows for part in self.parts))

    @property
    def num_parameters(self) -> int:
        return sum(part.num_parameters for part in self.parts)

    @property
    def input_bytes(self) -> int:
        return sum(part.input_bytes for part in self.parts)

    @property
    def forward_backward_bytes(self) -> int:
        return sum(part.forward_backward_bytes for part in self.parts)

    @property
    def parameter_bytes(self) -> int:
        return sum(part.parameter_bytes for part in self.parts)

    @property
    def total_bytes(self) -> int:
        return sum(part.total_bytes for part in self.parts)


def summarize(trace: Trace) -> Summary:
    """Layer summary of a workload's model in the style of torchsummary.

    Args:
        trace: recorded step, which must list tensors and layers.
    """
    model = next((layer for layer in trace.layers if not layer.name), None)
    branches = () if model is None else _branches(model, trace.layers)
    parts = [
        _part(branch, [layer for layer in trace.layers if _is_within(layer, branch)]) for branch in branches
    ] or [_part(model or _unnamed(trace), trace.layers)]
    return Summary(workload=trace.workload, batch_size=trace.batch_size, parts=tuple(parts))


def _branches(model: ListedLayer, layers: Sequence[ListedLayer]) -> tuple[ListedLayer, ...]:
    """Submodules of a model that are models themselves, as each takes only the model's inputs.

    Empty if a direct submodule does not, if one is called twice, or if there is only one.

    Args:
        model: record of the model's call.
        layers: records of all layers' calls.
    """
    children = [layer for layer in layers if layer.name and "." not in layer.name]
    alone = len({child.name for child in children}) == len(children) > 1
    given = set(model.inputs)
    are_models = all(child.is_container and child.inputs and given >= set(child.inputs) for child in children)
    return tuple(children) if alone and are_models else ()


def _is_within(layer: ListedLayer, branch: ListedLayer) -> bool:
    return layer is branch or layer.name.startswith(f"{branch.name}.")


def _part(model: ListedLayer, layers: Iterable[ListedLayer]) -> SummaryPart:
    """Layer summary of a model or branch, with a row for each call of a layer."""
    listed = [
        layer
        for layer in layers
        if not layer.is_sequence and (layer.name != model.name or not model.is_container)
    ]
    return SummaryPart(
        name=model.name,
        module_type=model.module_type,
        rows=tuple(
            SummaryRow(name=f"{layer.module_type}-{number}", layer=layer)
            for number, layer in enumerate(listed, 1)
        ),
        inputs=model.inputs,
        num_input_elements=sum(map(math.prod, model.input_shapes)),
    )


def _unnamed(trace: Trace) -> ListedLayer:
    """Record in place of the call of a model whose `forward` is never called, with the batch as inputs.

    Its inputs are the tensors of the batch.
    """
    batch = [tensor for tensor in trace.tensors if tensor.role is Role.INPUT]
    return ListedLayer(
        name="",
        module_type="",
        input_shapes=tuple(tensor.shape for tensor in batch),
        output_shapes=(),
        inputs=tuple(tensor.storage for tensor in batch),
        outputs=(),
        num_parameters=0,
        num_weights=0,
        is_container=True,
        is_sequence=False,
    )
