"""Launches of Triton's kernels in compiled code, where Triton is not installed.

Dynamo follows the stand-in's Python code up to an operator, `autofit_triton::launch`, which takes the place
of PyTorch's own operator for such launches: it reads tensors, writes others and allocates nothing. Which ones
a kernel writes is read from its source: those that the pointers of `tl.store` and the like are made of.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("autofit_triton", "FRAGMENT")
_LIBRARY.define("launch(str name, Tensor[] read, Tensor(a!)[] written) -> ()")
_LIBRARY.impl("launch", lambda _name, _read, _written: None, "Meta")
launch: Any = torch.ops.autofit_triton.launch

_LANGUAGE = ("tl", "triton", "language", "libdevice")
_STORES = ("store", "atomic_")  # beginnings of names
_LOADS = "load"


def written_by(function: Callable[..., Any]) -> frozenset[str]:
    """Parameters of a kernel whose memory it may write; all of them if its source is not there."""
    names = frozenset(inspect.signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return names
    made_of: dict[str, set[str]] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in _names(target):
                    made_of.setdefault(name, set()).update(_names(node.value))
        elif isinstance(node, ast.Call):
            found.update(_written_in(node))
    waiting = list(found)
    while waiting:
        new = made_of.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return names & found


def _written_in(call: ast.Call) -> Iterator[str]:
    """Names that the pointers are made of which a call in a kernel may write to."""
    function = call.func
    if isinstance(function, ast.Attribute):
        if function.attr.startswith(_STORES):
            is_languages = isinstance(function.value, ast.Name) and function.value.id in _LANGUAGE
            yield from _names(call.args[0] if is_languages and call.args else function.value)
            return
        if _root(function) in _LANGUAGE:
            return
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(given, ast.Name) and not _is_pythons(function):
            yield given.id  # another function of the kernel's may write there


def _is_pythons(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ("range", "min", "max", "int", "float", "len")


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> Iterator[str]:
    """Names in an expression, without those of what is loaded from memory."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _LOADS:
        return
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def launch_in_graph(
    kernel_name: str,
    arg_names: list[str],
    written_names: frozenset[str],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Puts a launch into the graph that Dynamo collects."""
    read: list[Tensor] = []
    written: list[Tensor] = []
    given = list(zip(arg_names, args, strict=False))
    given += [(name, options[name]) for name in arg_names if name in options]
    for name, value in given:
        tensor = getattr(value, "base", None) if hasattr(value, "block_shape") else value
        if isinstance(tensor, Tensor):
            if name in written_names:
                written.append(tensor)
            else:
                read.append(tensor)
    launch(kernel_name, read, written)
