"""Parts of a trace: allocations, marks, waits, and lists of tensors, layers and operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.work import Convolution

# Number of the stream that stands for the memory pool of CUDA graphs, above those that a program makes.
GRAPHS_POOL = 255
FORWARD_END = "step 1 output"  # the mark where the model has returned, in a trace that lists tensors


class Category(StrEnum):
    """Category of the tensors that an allocation holds, such as parameters or activations.

    `PARAMETER` covers parameters and buffers. `ACTIVATION` is all that the forward pass and the loss
    allocate. `GRADIENT` is what ends as a parameter's `.grad`; the gradients of activations in backward
    and the optimizer's temporaries are `OTHER`.
    """

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    WORKSPACE = "workspace"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory that an operator takes besides its outputs, sized when the trace is replayed.

    The trace does not fix a size because it can depend on the card, on PyTorch's release and, by
    roundings and thresholds, on the batch size.

    Attributes:
        formula: name of a formula of `autofit_workers.replay.curve.scratch.formulas`.
        dimensions: arguments of the formula, each a linear function of the batch size.
        element_bytes: size of one element.
    """

    formula: str
    dimensions: tuple[int, ...]
    element_bytes: int


# Operator names of allocations whose size is known only as a range on every card: managed memory, which is
# not from PyTorch's allocator and may lie on the host; temporaries of an optimizer's compiled step; scratch
# memory of libraries for sparse tensors.
MANAGED_MEMORY, COMPILED_STEP = "cudaMallocManaged", "torch.compile"
CUSPARSE_BUFFER, SORT_BUFFER = "cusparse", "thrust::sort"
# Module that an allocation names if it is a bucket of gradients.
DATA_PARALLEL = "DistributedDataParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Request of memory from the allocator.

    Attributes:
        num_bytes: bytes requested; 0 if they are computed from `convolution` or `scratch` at a replay.
        operator: the ATen operator that asked, or the part of the step outside any operator.
        module: path of the `nn.Module` that ran it; in backward, of the one whose forward pass made the
            autograd node.
        source: innermost line of the user's code, `file:line:function`.
        correction: for memory that is no operator's output, such as cuBLAS's workspace, the name of its kind
            in `autofit_workers.replay.curve.corrections`; else empty.
        span_bytes: the low and the high end of `num_bytes` if that is an estimate of a library's request,
            each a linear function of the batch size; None if it is exact.
        stack: lines of Python that led to it, outermost first, each `file:line:function`, in traces with
            stacks; in backward those of the forward pass that made the autograd node. Paths of PyTorch and
            the standard library are relative to where these are installed.
        name: name of a parameter `conv1.weight`, of its gradient `conv1.weight.grad`, or of its optimizer
            state `conv1.weight.exp_avg`, in traces with calls; empty for anything else.
        counted_shape: shape of the tensor that the operator counts in 32 bits, if that is not its result
            (`autofit_workers.tracing.recording.counted`); empty for most.
        stream: number of the CUDA stream that was current, which the allocator keeps the block for;
            0 is the default stream, `GRAPHS_POOL` that of CUDA graphs; the recorder numbers the others.
        stream_uses: other streams that `Tensor.record_stream` named for the block. After its free, the block
            is handed out again only once each of them has done the work that it was given before the free.
    """

    num_bytes: int
    category: Category
    operator: str = ""
    module: str = ""
    source: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    convolution: Convolution | None = None
    correction: str = ""
    scratch: Scratch | None = None
    span_bytes: tuple[int, int] | None = None
    stack: tuple[str, ...] = ()
    name: str = ""
    counted_shape: tuple[int, ...] = ()
    stream: int = 0
    stream_uses: tuple[int, ...] = ()


class Role(StrEnum):
    """Role of a tensor in the forward pass: parameter, buffer, input or output of an operator."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTensor:
    """Tensor of one forward pass, with memory of its own or as a view of another tensor.

    Attributes:
        name: name of a parameter or buffer; `input:0` for the batch; for an operator's result the path of the
            module, the operator and the number of the result: `features.0/convolution:0`.
        storage: index of the allocation that it lies in; tensors that share memory have the same index.
        element_bytes: size of one element.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    element_bytes: int
    storage: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor's elements by its shape, whatever memory it lies in."""
        return self.num_elements * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLayer:
    """Call of a module in one forward pass, as a summary of a model lists it.

    Attributes:
        name: path of the module; empty for the model itself.
        module_type: name of its class.
        input_shapes, output_shapes: shapes of the tensors that it took and that it returned.
        inputs, outputs: the indices of the allocations that these tensors lie in.
        num_parameters: elements of its own parameters, not of its children's.
        num_weights: elements of its attributes `weight` and `bias`, as torchsummary counts them.
        is_container: whether it has children.
        is_sequence: whether it is an `nn.Sequential`, which only passes on its children's results.
    """

    name: str
    module_type: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    num_parameters: int
    num_weights: int
    is_container: bool
    is_sequence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Operator call of a step, with its inputs and outputs, for plans that place all buffers of the step.

    Attributes:
        position: number of the trace's events before it.
        inputs: indices of the allocations that its tensor arguments lie in.
        outputs: indices of the allocations that its results lie in; for a view or a result in place that of
            an input.
        is_elementwise: whether each element of the result depends only on the input elements at its place.
        name: name that Python code bound the result to; empty for a temporary without one.
    """

    position: int
    operator: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_elementwise: bool = False
    name: str = ""


class BatchSource(StrEnum):
    """Way in which the size of a batch was found out, such as from a data loader."""

    DATA_LOADER = "data_loader"  # the samples that its data loader collates
    MODEL_INPUT = "model_input"  # the rows that its model is trained on
    WHOLE_DATASET = "whole_dataset"  # its data set has no more samples
    MAKE_BATCH = "make_batch"  # a workload's function is asked for it
    ONE_SAMPLE = "one_sample"  # that function makes one batch alone, as a whole graph is


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCount:
    """Source of a batch's size, and the number of batches of a step.

    Attributes:
        source: how the size of a batch was found out.
        num_parts: for a script, the number of batches, on all ranks or one after the other, whose sizes add
            up to the batch size that is asked for; 1 otherwise.
        num_batches: for a script, the batches of an optimizer step, on all ranks and one after the other;
            None if training options decide it.
    """

    source: BatchSource = BatchSource.MAKE_BATCH
    num_parts: int = 1
    num_batches: int | None = None

    def samples_per_step(self, batch_size: int) -> int | None:
        """Number of samples of a script's optimizer step; None if training options decide it."""
        return None if self.num_batches is None else batch_size * self.num_batches // self.num_parts


AS_ASKED = BatchCount()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Assumed size of a quantity that depends on tensors' values, which a trace does not have.

    Attributes:
        site: the user's line, `file:line:function`.
        what: name of the quantity, in words.
        size: the size that was assumed, in elements.
        largest: the largest possible size; None if nothing limits it.
    """

    site: str
    what: str
    size: int
    largest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """Size of the samples in a trace, for a workload that can make samples of any size.

    Attributes:
        size: tokens, pixels of a side or the like; None if only the workload knows.
        multiple: sizes that differ by a multiple of this, such as 64 tokens, are rounded alike by all
            operators.
        longest: the largest size that the model was made for; None if nothing limits it.
    """

    size: int | None
    multiple: int
    longest: int | None = None


def parameters_in_words(num_parameters: int) -> str:
    """Number of parameters in words, such as `1.54 billion parameters`."""
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if num_parameters >= unit:
            return f"{num_parameters / unit:.3g} {name} parameters"
    return f"{num_parameters:,} parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """Model as it was built, before training options changed it: class, parameters and inputs.

    Attributes:
        model_class: the name of its class.
        num_parameters: number of elements of all its parameters.
        named: the class that its configuration names, if that is another one; else empty.
        inputs: shape of each part of one sample of the batches made for it; empty if the workload makes its
            own batches.
    """

    model_class: str
    num_parameters: int
    named: str = ""
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence that describes model and samples; empty if the workload makes its own batches."""
        if not self.inputs:
            return ()
        size = parameters_in_words(self.num_parameters)
        sample = ", ".join(
            f"{name} {'×'.join(map(str, shape))}".rstrip() for name, shape in self.inputs.items()
        )
        instead = f" (its configuration names {self.named}, which has no loss)" if self.named else ""
        return (f"the model is {self.model_class}, {size}{instead}; a sample is {sample}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Named position in a trace's events: `position` events come before the mark."""

    position: int
    name: str


def last_step(marks: Sequence[Mark], num_events: int) -> tuple[int, int]:
    """Start and end, as positions in the events, of the last step that was traced as a whole.

    In training a whole step has an optimizer phase; otherwise it has a forward phase. Events after the step's
    last phase, such as those of a checkpoint, do not belong to it. Both positions are `num_events` if no step
    is whole.

    Args:
        marks: marks of the trace, which name the phases.
        num_events: number of the trace's events.
    """
    named = ((mark.name.split(" ", 2), mark.position) for mark in marks)
    phases = [(words[1], words[2], position) for words, position in named if words[0] == "step"]
    kinds = {phase for _, phase, _ in phases}
    wanted = next((last for last in ("optimizer", "forward") if last in kinds), None)
    numbers = [number for number, phase, _ in phases if phase == wanted]
    if not numbers:
        return num_events, num_events
    positions = [position for number, _, position in phases if number == numbers[-1]]
    later = [mark.position for mark in marks if mark.position > positions[-1]]
    return positions[0], min(later, default=num_events + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """Wait of the host until a CUDA stream, or all streams, have done their work.

    It matters only for freed blocks that the streams in `Allocation.stream_uses` may still use.
    `Tensor.item`, `Stream.synchronize` and `torch.cuda.synchronize` wait for all work, `Event.synchronize`
    for the work before the event. If the stream itself had waited for other streams, their work is done too,
    and the trace has a `HostWait` for each of them.

    Attributes:
        position: number of events before it.
        stream: number of the stream; None for all streams.
        up_to: the work launched during the first `up_to` events is done after the wait; at most `position`.
        releases: whether cached memory is released after the wait, as `torch.cuda.empty_cache` does.
    """

    position: int
    stream: int | None
    up_to: int
    releases: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Passes of a text generation that were not traced; they repeat the last traced pass.

    Each pass makes one token. From pass to pass, each allocation grows by as many bytes as from the last but
    one traced pass to the last.

    Attributes:
        start: position in the events where the last traced pass begins; it ends with the last event.
        num_allocations: number of allocations in a pass. The last ones of a trace belong to its last pass, as
            many before them to the pass before.
        times: number of the untraced passes.
    """

    start: int
    num_allocations: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeRanks:
    """Ranks that hold equally large parts of a model and run the same work on them.

    Attributes:
        first: number of the first of these ranks.
        num_ranks: number of these ranks.
    """

    first: int
    num_ranks: int
