"""Lists the tensors of one forward pass, including views, and its layers.

The recorder only knows storages, whose sizes add up to the memory. The list here, as shown by a debugger or a
graph of the model, has several tensors for a storage that is seen in several shapes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autofit_workers.pytorch.autograd import current_node
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.spec.trace import FORWARD_END, ListedLayer, ListedTensor, Role
from autofit_workers.tracing.fake.shapes import returns_its_first_argument
from autofit_workers.tracing.recording.names import name_of_type
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.workload.workload import tensors_of


class TensorList:
    """List of the tensors of one forward pass; pass its `observe` to the fake device, not the recorder's.

    Args:
        recorder: recorder to which operators are passed on, and which knows a tensor's storage.

    Attributes:
        listed: parameters, buffers, tensors of the batch, and outputs of operators in the model.
        layers: calls of the model's modules with shapes of inputs and outputs, in the order of their ends.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.listed: list[ListedTensor] = []
        self.layers: list[ListedLayer] = []
        self._recorder = recorder
        self._running: list[str] = []
        self._num_calls: collections.Counter[str] = collections.Counter()

    def observe(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Passes an operator on to the recorder, and lists its output tensors if the model is running."""
        self._recorder.observe(func, args, kwargs, result)
        if not self._running or returns_its_first_argument(func):
            return
        operator = func._schema.name.partition("::")[2]
        found = self._tensors(result)
        if found:
            name = self._named("/".join(filter(None, (self._running[-1], operator))))
            for number, tensor in enumerate(found):
                self._list(f"{name}:{number}", Role.OUTPUT, tensor)

    @contextmanager
    def of_pass(self, model: torch.nn.Module, batch: Any) -> Iterator[None]:
        """Context of one forward pass that fills the list, and marks the end of forward in the trace."""
        for name, parameter in model.named_parameters():
            self._list(name, Role.PARAMETER, parameter)
        for name, buffer in model.named_buffers():
            self._list(name, Role.BUFFER, buffer)
        for number, tensor in enumerate(tensors_of(batch)):
            self._list(f"input:{number}", Role.INPUT, tensor)
        names = {module: name for name, module in model.named_modules()}

        def enter(module: torch.nn.Module, _args: object) -> None:
            if module in names and not _is_run_again():
                self._running.append(names[module])

        def leave(module: torch.nn.Module, args: object, kwargs: object, result: object) -> None:
            if module in names and not _is_run_again():
                name = self._running.pop()
                self.layers.append(self._layer(name, module, (args, kwargs), result))
                if not self._running:
                    self._recorder.mark(FORWARD_END)

        hooks = torch.nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, with_kwargs=True, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _layer(self, name: str, module: torch.nn.Module, given: object, result: object) -> ListedLayer:
        """Entry of the list of layers for a module's call: shapes and storages of inputs and outputs."""
        given_tensors, returned = self._tensors(given), self._tensors(result)
        weights = (getattr(module, attribute, None) for attribute in ("weight", "bias"))
        return ListedLayer(
            name=name,
            module_type=type(module).__name__,
            input_shapes=tuple(tuple(tensor.shape) for tensor in given_tensors),
            output_shapes=tuple(tuple(tensor.shape) for tensor in returned),
            inputs=tuple(map(self._storage, given_tensors)),
            outputs=tuple(map(self._storage, returned)),
            num_parameters=sum(parameter.numel() for parameter in module.parameters(recurse=False)),
            num_weights=sum(each.numel() for each in weights if isinstance(each, torch.Tensor)),
            is_container=any(True for _ in module.children()),
            is_sequence=isinstance(module, torch.nn.Sequential),
        )

    def _tensors(self, value: object) -> list[torch.Tensor]:
        """Tensors in a nested value, such as dicts and lists, that are on the recorded device."""
        return [tensor for tensor in tensors_of(value) if self._recorder.allocation_of(tensor) is not None]

    def _storage(self, tensor: torch.Tensor) -> int:
        number = self._recorder.allocation_of(tensor)
        assert number is not None
        return number

    def _named(self, name: str) -> str:
        """`name` made unique: a number is appended from its second use on."""
        number = self._num_calls[name]
        self._num_calls[name] += 1
        return f"{name}_{number}" if number else name

    def _list(self, name: str, role: Role, tensor: torch.Tensor) -> None:
        """Appends a tensor to the list, unless it is on another device than the recorded one."""
        storage = self._recorder.allocation_of(tensor)
        if storage is None:
            return
        self.listed.append(
            ListedTensor(
                name=name,
                role=role,
                shape=tuple(tensor.shape),
                dtype=name_of_type(tensor.dtype),
                element_bytes=tensor.element_size(),
                storage=storage,
            )
        )


def _is_run_again() -> bool:
    """Whether backward is recomputing a module's forward for activation checkpointing."""
    return current_node() is not None
