"""Lines and modules of the user's code behind each line of a wrapper that Inductor generates.

Inductor notes for each kernel the operators that it was made of, and writes the kernel's number above its
call. A buffer is allocated above the call that writes it, so each line of a wrapper stands for the next call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from autofit_workers.pytorch import inductor
from autofit_workers.tracing.compiled.wrapper import source_of
from autofit_workers.tracing.recording.call_sites import is_users_path
from autofit_workers.tracing.recording.generated_code import Place, register

_CALL = re.compile(r"# \[Provenance debug handles\] (\S+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ROOT = re.compile(r"^L\['\w+'\]")  # local variable that Dynamo found the outermost module in
_INDEX = re.compile(r"\[['\"]?(\w+)['\"]?\]")
_CONTAINER = re.compile(r"\._modules\b")


def install() -> None:
    """Registers the places of each wrapper after it was generated, in this process, for good."""
    generated = inductor.COMPILE_TO_MODULE.get()

    def compiled(lowering: Any) -> Any:
        module = generated(lowering)
        lowering.cache_path = os.devnull  # PyTorch reads the wrapper again from there, for its log
        register(module.__file__, _places(source_of(module.__file__), _nodes(lowering)))
        return module

    inductor.COMPILE_TO_MODULE.replace(compiled)


def _nodes(lowering: Any) -> dict[str, Any]:
    """Nodes of a lowered graph by their names."""
    return {node.name: node for node in lowering.graph.nodes}


def _places(source: str, nodes: Mapping[str, Any]) -> dict[int, Place]:
    """Places that the lines of a wrapper stand for, by line number; lines after the last call have none."""
    places: dict[int, Place] = {}
    first, place = 1, None
    for number, line in enumerate(source.split("\n"), 1):
        call = _CALL.search(line)
        if call is not None:
            place = _place(call[1], nodes)
        elif place is not None and not _is_comment(line):
            places |= dict.fromkeys(range(first, number + 1), place)
            first, place = number + 1, None
    return places


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#") or "get_raw_stream" in line


def _place(kernel: str, nodes: Mapping[str, Any]) -> Place:
    """Place of a kernel, given by the name and number that Inductor's notes have for it."""
    notes: Any = inductor.debug
    made_of = notes._inductor_triton_kernel_to_post_grad_node_info.get(kernel, ())
    found = [nodes[name] for name in made_of if name in nodes]
    traces = [trace for trace in notes._inductor_kernel_stack_trace.get(kernel, ()) if trace]
    return Place(_common([_module(node) for node in found]), _lines(traces[-1]) if traces else ())


def _lines(trace: str) -> tuple[str, ...]:
    """Lines of the user's code in a stack trace, as `file:line:function`, outermost first."""
    return tuple(
        f"{path}:{line}:{function}" for path, line, function in _FRAME.findall(trace) if is_users_path(path)
    )


def _module(node: Any) -> str:
    """Path of the innermost module that an operator ran in, forward or backward; empty for none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _kind in stack.values()]
    return _CONTAINER.sub("", _INDEX.sub(r".\1", _ROOT.sub("", paths[-1]))).strip(".") if paths else ""


def _common(modules: Iterable[str]) -> str:
    """Path of the innermost module that contains all the given ones."""
    paths = [module.split(".") for module in dict.fromkeys(modules) if module]
    if not paths:
        return ""
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
