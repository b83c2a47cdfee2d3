"""Lists the tensors of one forward pass, those that are only views of others among them.

The recorder knows storages, which is all that memory consists of; a list of tensors, as a debugger or
a graph shows it, counts a storage once for every shape that it is seen in.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from workers.predict.recorder import Recorder
from workers.predict.shapes import returns_its_first_argument
from workers.trace import FORWARD_END, ListedTensor, Role
from workers.workload import tensors_of


class TensorList:
    """The tensors of a pass; pass `observe` to the fake device in place of the recorder's.

    Args:
        recorder: knows which storage a tensor lies in.

    Attributes:
        listed: parameters, buffers, the batch, and what operators returned while the model ran.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.listed: list[ListedTensor] = []
        self._recorder = recorder
        self._running: list[str] = []
        self._num_calls: collections.Counter[str] = collections.Counter()

    def observe(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Records an operator and lists what it returned."""
        self._recorder.observe(func, args, kwargs, result)
        if not self._running or returns_its_first_argument(func):
            return
        operator = func._schema.name.partition("::")[2]
        found = [leaf for leaf in tree_leaves(result) if self._recorder.allocation_of(leaf) is not None]
        if found:
            name = self._named("/".join(filter(None, (self._running[-1], operator))))
            for number, tensor in enumerate(found):
                self._list(f"{name}:{number}", Role.OUTPUT, tensor)

    @contextmanager
    def of_pass(self, model: torch.nn.Module, batch: Any) -> Iterator[None]:
        """Lists what a step makes while its model runs, from the batch on."""
        for name, parameter in model.named_parameters():
            self._list(name, Role.PARAMETER, parameter)
        for name, buffer in model.named_buffers():
            self._list(name, Role.BUFFER, buffer)
        for number, tensor in enumerate(tensors_of(batch)):
            self._list(f"input:{number}", Role.INPUT, tensor)
        names = {module: name for name, module in model.named_modules()}

        def enter(module: torch.nn.Module, _args: object) -> None:
            if module in names:
                self._running.append(names[module])

        def leave(module: torch.nn.Module, _args: object, _result: object) -> None:
            if module in names:
                self._running.pop()
                if not self._running:
                    self._recorder.mark(FORWARD_END)

        hooks = torch.nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _named(self, name: str) -> str:
        """The name, with the number of the call where it is not the first."""
        number = self._num_calls[name]
        self._num_calls[name] += 1
        return f"{name}_{number}" if number else name

    def _list(self, name: str, role: Role, tensor: torch.Tensor) -> None:
        storage = self._recorder.allocation_of(tensor)
        if storage is None:
            return
        self.listed.append(
            ListedTensor(
                name=name,
                role=role,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                element_bytes=tensor.element_size(),
                storage=storage,
            )
        )
