"""Adds to a traced step the memory that `DistributedDataParallel` (DDP) takes on one rank with its defaults.

    model built   parameters and buffers are broadcast as flat copies of 250 MiB; then one bucket is allocated
                  for all gradients of a dtype
    each forward  buffers are broadcast again; before the second, the first buckets are replaced by smaller
                  ones: of 1 MiB, then of 25 MiB, in the order in which gradients were ready
    backward      gradients are copied into the buckets; each full bucket is all-reduced while backward goes
                  on; at the end, DDP waits for all buckets and copies the gradients back

Sources, in PyTorch 2.13: torch/nn/parallel/distributed.py (`_ddp_init_helper`, `_pre_forward`), and
torch/csrc/distributed/c10d/reducer.cpp (`initialize_buckets`, `rebuild_buckets`, `mark_variable_ready_dense`,
`finalize_backward`) and comm.cpp (`broadcast_coalesced`). Buckets take memory in addition to the gradients,
as `gradient_as_bucket_view` is False.

Not predicted because they are small: shapes and indices that ranks exchange, a few numbers per parameter; and
exchanged sparse gradients. NCCL's own memory is outside the allocator: see `autofit.hardware.nccl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from autofit_workers.pytorch.autograd import EXECUTION_ENGINE
from autofit_workers.spec.errors import InapplicableError, UnsupportedError
from autofit_workers.spec.trace import DATA_PARALLEL, Category
from autofit_workers.spec.work import Group, Work
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.work_log import operand

FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
_BROADCAST_BYTES = 250 * 2**20
_UNLIMITED = 2**63
_MAX_BROADCASTS = 2  # broadcasts in flight at a time

Dtype = torch.dtype


def buckets_of(parameters: Sequence[tuple[Dtype, int]], limits_bytes: tuple[int, ...]) -> list[list[int]]:
    """Indices of the parameters in each gradient bucket, as DDP assigns them.

    A bucket takes parameters of one dtype until it has reached its limit in bytes
    (`compute_bucket_assignment_by_size` of reducer.cpp).

    Args:
        parameters: dtype and number of elements of each parameter, in order.
        limits_bytes: limit of the first bucket of a dtype, of the second, …; the last applies to all further
            ones.

    Returns:
        For each bucket the indices of its parameters.
    """
    full: list[list[int]] = []
    filling: dict[Dtype, list[int]] = {}
    num_full: dict[Dtype, int] = {}
    for place, (dtype, _) in enumerate(parameters):
        bucket = filling.setdefault(dtype, [])
        bucket.append(place)
        number = num_full.get(dtype, 0)
        num_bytes = sum(parameters[each][1] for each in bucket) * dtype.itemsize
        if num_bytes >= limits_bytes[min(number, len(limits_bytes) - 1)]:
            full.append(filling.pop(dtype))
            num_full[dtype] = number + 1
    return [*full, *filling.values()]


class _Bucket:
    """Bucket of gradients that DDP reduces together.

    Attributes:
        flat: tensor of all gradients of the bucket, one after the other.
        places: by a parameter's id, the view of `flat` for its gradient.
        missing: ids of the parameters whose gradients have yet to arrive in this backward pass.
    """

    def __init__(self, flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
        self.flat = flat
        sizes = [parameter.numel() for parameter in parameters]
        self.places = {
            id(parameter): part.view(parameter.shape)
            for parameter, part in zip(parameters, flat.split(sizes), strict=True)
        }
        self.missing = set(self.places)


class DataParallel:
    """Simulation of DDP's reducer on one rank, which hooks into a model's forward and gradients.

    Make it while the fake device's mode is active and the model is on the device.

    Args:
        recorder: records the memory and the work of the reducer.
        num_ranks: number of ranks that reduce gradients together.
        finds_unused: whether DDP has `find_unused_parameters=True`, with which it keeps the first buckets.

    Raises:
        InapplicableError: no parameter of the model is trained.
    """

    def __init__(
        self, model: nn.Module, recorder: Recorder, num_ranks: int, *, finds_unused: bool = False
    ) -> None:
        self._recorder = recorder
        self._ranks = Group(num_ranks)
        self._finds_unused = finds_unused
        self._model = model
        sparse = _with_sparse_gradients(model)
        self._names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        if not self._names:
            raise InapplicableError(
                "--parallel ddp: no parameter of the model is trained, so ranks exchange nothing: leave "
                "--parallel out"
            )
        self._reduced = [p for p in model.parameters() if p.requires_grad and id(p) not in sparse]
        self._ready: dict[int, nn.Parameter] = {}  # by id, in the order in which gradients arrived
        self._has_rebuilt = False
        self._has_run = False
        with self._recording(Category.OTHER):
            self._broadcast([*model.parameters(), *model.buffers()])
        self._buckets: list[_Bucket] = []
        self._num_reduced = 0  # buckets, in this backward pass
        self._allocate(self._reduced, (_UNLIMITED,))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._arrived)
        model.register_forward_pre_hook(self._before_forward)

    def check_step(self) -> None:
        """Checks after the first step that `DistributedDataParallel` could run the step.

        Raises:
            UnsupportedError: the step never calls the model itself, so DDP would not reduce gradients; or a
                parameter gets no gradient, so DDP would fail.
        """
        if self._has_rebuilt:  # a second forward in the step has already checked it
            return
        if not self._has_run:
            raise UnsupportedError(
                "--parallel ddp: a step calls parts of the model but never the model itself, and so bypasses "
                f"{DATA_PARALLEL}: call the model that step or loss receives, or leave --parallel out"
            )
        missing = [name for key, name in self._names.items() if key not in self._ready]
        if missing:
            raise UnsupportedError(
                f"--parallel ddp: {missing[0]} gets no gradient in the step; {DATA_PARALLEL} then fails "
                "unless find_unused_parameters=True, which is not predicted: set requires_grad to False for "
                "what is not trained, or leave --parallel out"
            )

    def _arrived(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if not self._has_rebuilt:
            self._ready.setdefault(id(parameter), parameter)
        self._reduce(parameter)

    def _reduce(self, parameter: nn.Parameter) -> None:
        """Copies a gradient into its bucket, and all-reduces buckets that are full, in their order."""
        bucket = next((each for each in self._buckets if id(parameter) in each.places), None)
        gradient = parameter.grad
        if bucket is None or gradient is None or self._recorder.work.is_paused:
            return
        with torch.no_grad(), self._recorder.within(DATA_PARALLEL):
            torch.mul(gradient, 1 / self._ranks.num_ranks, out=bucket.places[id(parameter)])
        bucket.missing.discard(id(parameter))
        while self._num_reduced < len(self._buckets) and not self._buckets[self._num_reduced].missing:
            self._exchange("c10d.allreduce_", self._buckets[self._num_reduced].flat, self)
            self._num_reduced += 1
            if self._num_reduced == len(self._buckets):
                EXECUTION_ENGINE.get().queue_callback(self._finish)

    def _finish(self) -> None:
        """Waits until all buckets are reduced, and copies the gradients back."""
        recorder = self._recorder
        recorder.work.wait_for(0, self)
        parameters = {id(each): each for each in self._reduced}
        self._num_reduced = 0
        with torch.no_grad(), recorder.within(DATA_PARALLEL):
            for bucket in self._buckets:
                bucket.missing = set(bucket.places)
                for key, place in bucket.places.items():
                    gradient = parameters[key].grad
                    if gradient is not None:
                        gradient.copy_(place)

    def _exchange(self, operator: str, tensor: torch.Tensor, handle: object) -> None:
        whole = operand(tensor)
        work = Work(operator, (whole,), (whole,), group=self._ranks)
        self._recorder.exchanged(work, name_of_group=DATA_PARALLEL, handle=handle)

    def _before_forward(self, _model: nn.Module, _inputs: object) -> None:
        if not torch.is_grad_enabled():
            return
        self._has_run = True
        if not self._has_rebuilt and self._ready and not self._finds_unused:
            self._rebuild()
        with self._recording(Category.OTHER):
            self._broadcast(list(self._model.buffers()), are_taken=True)

    def _rebuild(self) -> None:
        self.check_step()
        self._has_rebuilt = True
        reduced = {id(p) for p in self._reduced}
        self._buckets.clear()
        self._allocate(
            [p for key, p in self._ready.items() if key in reduced], (FIRST_BUCKET_BYTES, BUCKET_BYTES)
        )
        self._ready.clear()

    def _allocate(self, parameters: Iterable[nn.Parameter], limits_bytes: tuple[int, ...]) -> None:
        device = self._reduced[0].device if self._reduced else None
        own = list(parameters)
        found = buckets_of([(p.dtype, p.numel()) for p in own], limits_bytes)
        if not self._has_rebuilt:
            found.reverse()  # as `_ddp_init_helper` does
        with self._recording(Category.GRADIENT):
            for places in found:
                inside = [own[place] for place in places]
                num_elements = sum(each.numel() for each in inside)
                flat = torch.empty(num_elements, dtype=inside[0].dtype, device=device)
                self._buckets.append(_Bucket(flat, inside))

    def _broadcast(self, tensors: list[torch.Tensor], *, are_taken: bool = False) -> None:
        """Broadcasts tensors as flat copies, of which at most two are alive at a time.

        Args:
            tensors: the tensors.
            are_taken: whether this happens in a step, so the work of the broadcast and of copying its
                results back is recorded; else only the memory is.
        """
        in_flight: list[torch.Tensor] = []
        for piece in _pieces(tensors):
            if len(in_flight) == _MAX_BROADCASTS:
                del in_flight[0]
            flat = torch.cat([tensor.contiguous().view(-1) for tensor in piece])
            in_flight.append(flat)
            if are_taken and not self._recorder.work.is_paused:
                self._exchange("c10d.broadcast_", flat, flat)
                self._recorder.work.wait_for(0, flat)
                for tensor, part in zip(piece, flat.split([each.numel() for each in piece]), strict=True):
                    tensor.copy_(part.view(tensor.shape))

    @contextmanager
    def _recording(self, category: Category) -> Iterator[None]:
        before, self._recorder.category = self._recorder.category, category
        try:
            with torch.no_grad(), self._recorder.within(DATA_PARALLEL):
                yield
        finally:
            self._recorder.category = before


def _pieces(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields lists of tensors of one dtype, up to about 250 MiB, that DDP broadcasts as one flat copy."""
    filling: dict[Dtype, list[torch.Tensor]] = {}
    pieces: list[list[torch.Tensor]] = []
    for tensor in tensors:
        piece = filling.setdefault(tensor.dtype, [])
        if not piece:
            pieces.append(piece)
        piece.append(tensor.detach())
        if sum(each.numel() * each.element_size() for each in piece) >= _BROADCAST_BYTES:
            del filling[tensor.dtype]
    yield from pieces


def _with_sparse_gradients(model: nn.Module) -> set[int]:
    """Ids of the parameters with sparse gradients, which are reduced without a bucket."""
    return {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
