"""Fake device: tensors that have shapes and storages, but no data.

`FakeDeviceMode` is the common base of the fake GPU (`fake_gpu`) and the fake CPU (`host.fake_cpu`). The other
functions let modules, parameters and optimizers of PyTorch work with fake tensors.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from autofit_workers.apply.base import quantized_before_sharding
from autofit_workers.pytorch.dispatch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)
from autofit_workers.pytorch.fake_tensors import FakeTensor, FakeTensorMode
from autofit_workers.pytorch.operators import HigherOrderOperator, OpOverload, make_contiguous_strides_for
from autofit_workers.pytorch.tensors import INFERENCE_MODE, MAKE_SUBCLASS, swap_tensor_impl
from autofit_workers.pytorch.training import OPTIMIZER_STEP_OF_SCALER, TRUNCATED_NORMAL
from autofit_workers.spec.errors import StaleTensorError
from autofit_workers.spec.pythons import Self
from autofit_workers.tracing.fake import composites, dynamo, flex_attention
from autofit_workers.tracing.fake.devices import NamedDevices
from autofit_workers.tracing.fake.ranks import shelves
from autofit_workers.tracing.fake.running import MODES, OperatorObserver
from autofit_workers.tracing.fake.shapes import FakeTensors, ShapeCache, as_computed
from autofit_workers.tracing.fake.sparse import running as sparse
from autofit_workers.tracing.kernels import following, own_operators, triton
from autofit_workers.tracing.values.known import followed
from autofit_workers.tracing.values.reads import ANSWERS
from autofit_workers.tracing.values.sized import Sizes, has_mask, rule_of, scalar

aten: Any = torch.ops.aten


# During backward, reads of values reach the dispatch mode as operators, not as Python calls.
_READS = {aten._local_scalar_dense.default: scalar, aten.equal.default: ANSWERS[torch.equal]}
_HOST = torch.device("cpu")


def _unseen(*_call: object) -> None:
    """Does nothing; default of `FakeDeviceMode.worked`, a callback for work of composite operators."""


class FakeDeviceMode(TorchDispatchMode):
    """Base of the dispatch modes that run operators on fake tensors of one device.

    Args:
        observer: called after every operator on fake tensors with the operator, its arguments (positional,
            then by keyword) and its result; it records allocations and work.
        device: device of the fake tensors.
        finish: gives results the memory format that they have on the device; see `ShapeCache`.
        devices: function mode that handles Python calls naming a device, before they become operators.

    Attributes:
        observer: the observer that was given.
        worked: called like the observer, but only to record work: after an operator that ran as several
            smaller ones, whose allocations the observer has seen.
        kept: tensors that libraries keep until the process ends, by name.
        num_tried: number of Python functions that run and may fail, one within the other.
    """

    def __init__(
        self,
        observer: OperatorObserver,
        device: torch.device,
        finish: Callable[..., Any] = as_computed,
        devices: NamedDevices | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.fake_mode = FakeTensorMode()
        self._shapes = ShapeCache(self.fake_mode, device, finish)
        self._on_device = FakeTensors(self.fake_mode, device)
        self._on_host = FakeTensors(self.fake_mode, _HOST)
        self.observer = observer
        self.worked: OperatorObserver = _unseen
        self._sizes = Sizes(self._fresh, self._run)
        self._named_devices = devices or NamedDevices()
        self.kept: dict[str, torch.Tensor] = {}
        self.num_tried = 0
        self._strangers: dict[OpOverload, None] = {}  # operators that nobody registered

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about operators with unknown scratch memory that ran, a sentence each."""
        return following.notes(self._strangers)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Context in which operators run without being recorded: the observer is not called."""
        observer, self.observer = self.observer, lambda *_call: None
        try:
            yield
        finally:
            self.observer = observer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch keeps its compiler from tracing this mode: False, as nothing is compiled here."""
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether PyTorch's compiler ignores this mode: True, as compiled code runs below it."""
        return True

    def __enter__(self) -> Self:
        self._named_devices.__enter__()
        super().__enter__()
        MODES.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        MODES.pop()
        super().__exit__(*exception)
        self._named_devices.__exit__(*exception)

    def in_step(self) -> AbstractContextManager[None]:
        """Context in which a training or inference step runs, after its batch is made; no effect here."""
        return nullcontext()

    def taken_in(self, batch: Any) -> Any:
        """Batch as a step gets it: with fake tensors if the device is a CPU, else unchanged."""
        return batch

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(func, HigherOrderOperator):
            return flex_attention.run(self, func, args, kwargs)
        if self.device.type == "cuda" and sparse.concerns(func, args, kwargs):
            with self:
                return sparse.run(self, func, args, kwargs)
        if func in _READS:
            return _READS[func](*args)
        result = self._run_on_strided(func, args, kwargs)
        if func.namespace == shelves.NAMESPACE:
            shelves.enqueue(func, args, kwargs, result)
        return result

    def _run_on_strided(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator on dense fake tensors, reports it to the observer, and updates known values."""
        rule = rule_of(func)
        if rule is not None:
            result = rule(self._sizes, *args, **kwargs)
            self.observer(func, args, kwargs, result)
            return result
        func = composites.as_no_subclass(func)
        given, args = args, self._without_real_tensors(args)
        if func is aten.index.Tensor and has_mask(given):
            return self._sizes.index(*given)
        own = own_operators.body_of(func)
        if own is not None and (done := self._tried(own, args, kwargs)) is not None:
            return done[0]
        if (body := composites.WITH_TEMPORARIES.get(func) or triton.body_of(func)) is not None:
            with self:
                result = body(*args, **kwargs)
            if not composites.consists_of_operators(func):
                self.worked(func, args, kwargs, result)
            return result
        result = self._result(func, args, kwargs)
        self.observer(func, args, kwargs, result)
        followed(func, given, kwargs, result)
        return result

    def _tried(
        self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """Result of a Python function in a tuple; None if it fails, as one that calls compiled code does."""
        self.num_tried += 1
        try:
            with self:
                return (body(*args, **kwargs),)
        except Exception:  # noqa: BLE001 - the operator is then followed by its outputs
            return None
        finally:
            self.num_tried -= 1

    def _result(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kernel = following.kernel_of(func)
        if kernel is not None and kernel.outputs is not None:
            with self.fake_mode:
                return following.outputs_of(kernel, func, args, kwargs)
        result = self._shapes.run(func, args, kwargs)
        if following.is_unknown(func):
            self._strangers[func] = None
        return result

    def _fresh(self, shape: tuple[int, ...], dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
        """New fake tensor on the device of `like`; its allocation is not recorded."""
        with self.fake_mode:
            return torch.empty(shape, dtype=dtype, device=like.device)

    def wrapped(self, elem: torch.Tensor) -> FakeTensor:
        """Fake tensor on the mode's device that shares the storage of `elem`, a tensor on device `meta`."""
        return self._on_device(elem)

    def unseen(self, shape: tuple[int, ...], dtype: torch.dtype) -> FakeTensor:
        """New fake tensor on the mode's device; its allocation is not recorded."""
        return self._on_device.strided(shape, make_contiguous_strides_for(shape), dtype)

    def note(self, operator: OpOverload, inputs: tuple[torch.Tensor, ...], result: torch.Tensor) -> None:
        """Records the work of an operator, such as bytes read; its allocations were recorded before.

        Args:
            operator: the operator.
            inputs: tensors that it reads.
            result: tensor that it writes.
        """
        self.worked(operator, inputs, {}, result)

    def _without_real_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with each real tensor replaced by a fake CPU tensor without values.

        PyTorch's `FakeTensorMode` would compute the values of small real tensors.
        """
        if all(map(self._is_fine, args)):
            return args
        return tuple(
            self._own(arg)
            if isinstance(arg, torch.Tensor)
            else [*self._without_real_tensors(tuple(arg))]
            if isinstance(arg, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in arg)
            else arg
            for arg in args
        )

    def _is_fine(self, arg: object) -> bool:
        """Whether an operator's argument needs no conversion, as a fake tensor of this mode or a number."""
        if isinstance(arg, FakeTensor):
            return arg.fake_mode is self.fake_mode
        return not isinstance(arg, (torch.Tensor, list, tuple))

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fake tensor of this mode for `tensor`; a fake tensor is returned itself.

        Raises:
            StaleTensorError: `tensor` is a fake tensor of an earlier prediction.
        """
        if not isinstance(tensor, FakeTensor):
            return self.without_values(tensor)
        if tensor.fake_mode is not self.fake_mode:
            raise StaleTensorError("the workload keeps a tensor on the device from an earlier prediction")
        return tensor

    def without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fake CPU tensor of the shape, strides and dtype of `tensor`.

        `FakeTensorMode.from_tensor` does the same, but imports PyTorch's compiler.
        """
        return self._on_host.strided(tensor.size(), tensor.stride(), tensor.dtype)

    def placed(self, tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        """New fake tensor with the shape of `tensor` on `device` (default: the mode's device).

        The observer sees its allocation.
        """
        size, stride = tensor.size(), tensor.stride()
        make = self._on_device if device in (None, self.device) else FakeTensors(self.fake_mode, device)
        made = make.strided(size, stride, tensor.dtype)
        self.observer(torch.ops.aten.empty_strided.default, (size, stride), {}, made)
        return made

    def moved(self, buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Copy of `buffer` on `device`, as `buffer.to(device)` returns."""
        return self.placed(buffer, device)

    def launched(self, kernel: Any, read: tuple[Any, ...], written: list[Any]) -> None:
        """Reports a kernel of compiled code to the observer, which allocates nothing.

        Args:
            kernel: stand-in for the kernel, which has an operator's names.
            read: tensors that it reads.
            written: tensors that it writes.
        """
        self.observer(kernel, read, {}, written)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Reports to the observer that `storage` was resized by a call that is not an operator."""
        with DisableTorchDispatch():
            elem = torch.empty(0, dtype=torch.uint8, device="meta").set_(storage)
        made = self._on_device(elem)
        self.observer(aten.resize_.default, (made, made.size()), {}, made)


def has_wrapper(types: tuple[type, ...]) -> bool:
    """Whether a type of an operator's arguments is a wrapper around tensors, such as `DTensor`."""
    return any(map(_is_wrapper, types))


@functools.cache
def _is_wrapper(kind: type) -> bool:
    return kind.__module__.startswith("torch.distributed.") and hasattr(kind, "__tensor_flatten__")


@functools.cache
def install() -> None:
    """Patches PyTorch in this process, for good, so that models can train on fake tensors."""
    dynamo.install()
    _let_modules_convert_fake_parameters()
    _let_scalers_step_without_values()
    _let_initializers_leave_fake_parameters()
    _let_inference_mode_decompose()
    _let_models_be_copied()
    _let_data_be_moved()
    _let_storages_tell_their_size()


def _let_modules_convert_fake_parameters() -> None:
    """Lets `Module.to` convert fake parameters that have weak references, which PyTorch refuses to swap."""
    utils: Any = torch.utils
    swap = utils.swap_tensors

    def swap_or_set(old: torch.Tensor, new: torch.Tensor) -> None:
        if isinstance(old, FakeTensor) and new.device.type == "meta":  # `.data` would leave it on the CPU
            nowhere = torch.empty_strided(new.size(), new.stride(), dtype=new.dtype, device="meta")
            _become(old, torch.nn.Parameter(nowhere, requires_grad=old.requires_grad))
        elif isinstance(old, FakeTensor):
            old.data = new
        else:
            swap(old, new)

    utils.swap_tensors = swap_or_set


def _let_scalers_step_without_values() -> None:
    """Makes `GradScaler.step` always step the optimizer, as if no gradient had overflowed.

    A step that skips the optimizer needs less memory. The skipped check for overflow only copies one number
    to the host and allocates nothing on the GPU.
    """

    def step(
        _self: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        _state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return optimizer.step(*args, **kwargs)

    OPTIMIZER_STEP_OF_SCALER.replace(step)


def _let_initializers_leave_fake_parameters() -> None:
    """Makes `trunc_normal_` skip fake tensors, as it reads values to redraw those outside its bounds."""
    draw = TRUNCATED_NORMAL.get()

    def draw_unless_fake(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else draw(tensor, *args, **kwargs)

    TRUNCATED_NORMAL.replace(draw_unless_fake)


def _let_inference_mode_decompose() -> None:
    """Makes `torch.inference_mode` only disable gradients, so that composite operators decompose.

    In true inference mode tensors lack autograd's dispatch keys, and composite operators reach the dispatch
    mode undecomposed: a convolution would be an operator whose workspace is not known. Allocations are the
    same with gradients disabled.
    """
    INFERENCE_MODE.replace(_GradMode)


class _GradMode:
    """Context that disables gradients in place of PyTorch's C++ context of inference mode.

    Like that, it ends when it is no longer referenced, as PyTorch's compiler enters it and lets it go.
    """

    def __init__(self, inference: bool) -> None:
        self._enables = not inference
        self._before: bool | None = None

    def __enter__(self) -> Self:
        self._before = torch.is_grad_enabled()
        torch.set_grad_enabled(self._enables)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._before is not None:
            torch.set_grad_enabled(self._before)
            self._before = None

    __del__ = __exit__


def _let_models_be_copied() -> None:
    """Makes `copy.deepcopy` of a fake tensor share its mode instead of copying it."""
    mode: Any = FakeTensorMode
    mode.__deepcopy__ = lambda self, _memo: self


def _become(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Turns `tensor` into `other`, including class and attributes; `other` must not be used afterwards.

    `torch.utils.swap_tensors` would refuse tensors that have weak references.
    """
    swap_tensor_impl(tensor, other)
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__


def _as_fake(like: FakeTensor, tensor: torch.Tensor) -> FakeTensor:
    """Fake CPU tensor with the shape of `tensor`, of the fake mode of `like`."""
    with like.fake_mode:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    assert isinstance(made, FakeTensor)
    return made


def _let_data_be_moved() -> None:
    """Lets `tensor.data = other` take data of another device, or fake data for a real tensor."""
    plain: Any = torch.Tensor.data

    def taken(tensor: torch.Tensor, data: torch.Tensor) -> None:
        """Sets `tensor.data`; turns a real tensor, such as a buffer, into a fake one if `data` is fake."""
        if isinstance(data, FakeTensor) and not isinstance(tensor, FakeTensor):
            own, kind = dict(vars(tensor)), type(tensor)
            _become(tensor, data.detach())
            vars(tensor).update(own)  # keep attributes such as DeepSpeed's `ds_numel`
            if issubclass(kind, torch.nn.Parameter):
                tensor.__class__ = _fake_class(kind)
            return
        with DisableTorchFunction():  # an active function mode would call this setter again
            plain.__set__(tensor, data)

    def given(tensor: FakeTensor, data: torch.Tensor) -> None:
        if not isinstance(data, FakeTensor):  # a real tensor, copied to the host
            data = _as_fake(tensor, data)
        taken(tensor, data)
        tensor.fake_device = data.fake_device

    fake, real = FakeTensor, torch.Tensor  # type: Any, Any
    fake.data = property(plain.__get__, given)
    real.data = property(plain.__get__, taken)


def _let_storages_tell_their_size() -> None:
    """Makes `storage.resize_` report to the active mode that memory was freed or allocated.

    FSDP frees and reallocates parameters by that call.
    """
    storage_type: Any = torch.UntypedStorage
    resize = storage_type.resize_
    emptied: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def forget(key: int, _reference: object) -> None:
        emptied.pop(key, None)

    def resized(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        before = self.nbytes()
        resize(self, size)
        if not MODES or self.device.type != "meta" or size == before:
            return self
        if size == 0:
            emptied[self._cdata] = weakref.ref(self, functools.partial(forget, self._cdata))
            MODES[-1].resized(self)
        elif emptied.pop(self._cdata, None) is not None:
            MODES[-1].resized(self)
        return self

    storage_type.resize_ = resized


@contextmanager
def parameters_diverted(mode: FakeDeviceMode, *, keeps_meta: bool = False) -> Iterator[None]:
    """Context in which every parameter becomes a fake CPU tensor when it is registered with a module.

    Constructors of models run as usual, but a model of billions of parameters takes no memory. Parameters
    become fake before their initializers run, which then have no effect.

    Args:
        keeps_meta: whether parameters on the device `meta` are left alone, for code that moves them itself.
    """
    module: Any = torch.nn.Module
    register = module.register_parameter
    diverted: Any = torch.utils.weak.WeakTensorKeyDictionary()

    def register_diverted(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if (
            isinstance(param, torch.nn.Parameter)
            and not isinstance(param, (FakeTensor, UninitializedParameter))
            and not is_traceable_wrapper_subclass(param)  # it already holds fake tensors
            and not (keeps_meta and param.is_meta)
        ):
            if param not in diverted:
                diverted[param] = _fake_parameter(param, mode.without_values)
            param = diverted[param]
        register(self, name, param)

    module.register_parameter = register_diverted
    try:
        with parameters_made_like_others(mode):
            yield
    finally:
        module.register_parameter = register


@contextmanager
def parameters_made_like_others(mode: FakeDeviceMode) -> Iterator[None]:
    """Context in which a library's copy of a fake parameter, `type(parameter)(…)`, is fake too.

    Libraries write `type(parameter)(data, requires_grad=…)`, where the type is `FakeTensor`. Given fake data,
    `Parameter` itself and a library's subclass of it make fake parameters too.
    """
    fake: Any = FakeTensor
    make, initialize, make_subclass = fake.__new__, fake.__init__, MAKE_SUBCLASS.get()

    def made(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not (args and isinstance(args[0], torch.Tensor)):
            return make(cls, *args, **kwargs)
        data = args[0] if isinstance(args[0], FakeTensor) else mode.without_values(args[0])
        return torch.nn.Parameter(_of_no_class(data), requires_grad=kwargs.get("requires_grad", True))

    def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
        if not (args and isinstance(args[0], torch.Tensor)):
            initialize(self, *args, **kwargs)

    def made_of_class(cls: type, data: torch.Tensor, requires_grad: bool = False, **kwargs: Any) -> Any:
        """Makes a parameter of class `cls`; if `data` is fake, the parameter is a fake tensor as well."""
        if isinstance(data, FakeTensor):
            parameter: Any = torch.nn.Parameter(_of_no_class(data), requires_grad=requires_grad)
            parameter.__class__ = _fake_class(cls)
            return parameter
        return make_subclass(cls, data, requires_grad, **kwargs)

    fake.__new__, fake.__init__ = staticmethod(made), initialized
    MAKE_SUBCLASS.replace(staticmethod(made_of_class))
    try:
        yield
    finally:
        fake.__new__, fake.__init__ = make, initialize
        MAKE_SUBCLASS.replace(make_subclass)


def _of_no_class(data: torch.Tensor) -> torch.Tensor:
    """Fake tensor that shares the data of `data`, but is not of a library's parameter class."""
    return data if type(data) is FakeTensor else torch.Tensor.detach(data)


@functools.cache
def _fake_class(cls: type) -> type:
    """Class of fake tensors that has the methods of `cls`, a library's parameter class."""
    if cls is torch.nn.Parameter:
        return FakeTensor
    if issubclass(cls, FakeTensor):
        return cls

    def detach(self: Any) -> Any:
        """Detached tensor of the same class and attributes, as `Module.to` needs to make a parameter."""
        data: Any = torch.Tensor.detach(self)
        data.__class__ = type(self)
        for name, value in vars(self).items():
            vars(data).setdefault(name, value)
        return data

    kind: Any = type(cls)
    made: type = kind(cls.__name__, (cls, FakeTensor), {"__module__": cls.__module__, "detach": detach})
    return made


def move_to_device(
    mode: FakeDeviceMode,
    model: torch.nn.Module,
    then: Callable[[torch.nn.Module], None] = lambda _: None,
    device_of: Callable[[torch.nn.Module], torch.device] | None = None,
) -> None:
    """Moves a model's parameters and buffers to the fake device, in the order of `model.to(device)`.

    `Module.to` itself cannot move fake parameters that have weak references. Parameters that several modules
    share stay shared.

    Args:
        then: called with each module after its own parameters and buffers were moved.
        device_of: returns the device for a module's own parameters and buffers; None moves all to the mode's
            device.
    """
    moved: dict[int, torch.nn.Parameter] = {}
    keep_alive: list[torch.Tensor] = []
    for module in _children_first(model):
        device = mode.device if device_of is None else device_of(module)
        own = dict(module._parameters)
        for name, parameter in own.items():
            if parameter is None or parameter.device.type == "cuda":
                continue
            if id(parameter) not in moved:
                keep_alive.append(parameter)
                moved[id(parameter)] = _fake_parameter(
                    parameter, functools.partial(mode.placed, device=device)
                )
            module._parameters[name] = moved[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = mode.moved(buffer, device)
        if isinstance(module, torch.nn.RNNBase):
            module._init_flat_weights()
        then(module)
        for name, parameter in own.items():  # `then` may have replaced a parameter
            if moved.get(id(parameter)) is not module._parameters.get(name):
                moved.pop(id(parameter), None)


def quantize_before_sharding(mode: FakeDeviceMode, model: torch.nn.Module) -> None:
    """Quantizes a model's weights on the fake device, before the model is sharded."""
    quantized_before_sharding(
        model, lambda parameter: _fake_parameter(parameter, mode.placed), mode.without_values
    )


def move_buffers(mode: FakeDeviceMode, model: torch.nn.Module) -> None:
    """Moves a model's buffers to the mode's device, except those that are on it."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type != mode.device.type:
                module._buffers[name] = mode.moved(buffer, mode.device)


def _children_first(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _fake_parameter(
    parameter: torch.nn.Parameter, made: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Parameter:
    with torch.no_grad():
        fake = torch.nn.Parameter(made(parameter), requires_grad=parameter.requires_grad)
    for name, value in vars(parameter).items():
        vars(fake).setdefault(name, value)  # attributes such as `no_weight_decay`
    return fake
