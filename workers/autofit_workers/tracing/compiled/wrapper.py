"""Functions and kernels that the wrappers call which Inductor generates."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from autofit_workers.pytorch import inductor
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.running import MODES

_SIGNATURE = re.compile(r"^def \w+\(([^)]*)\)", re.MULTILINE)
_FUNCTION = re.compile(r"^def (\w+)\(", re.MULTILINE)
_WRAPPER = re.compile(r"^(    )?def call\(|^call = ", re.MULTILINE)
_NUMBER = re.compile(r"_\d+$")
_sources: dict[str, str] = {}  # generated code, by the path that its frames name


class FusedKernel:
    """Stand-in for a kernel that Inductor generated; a launch does nothing but record its work.

    It has the attributes by which operators are recorded.

    Args:
        name: name of the kernel, which says what it computes: `triton_poi_fused_add_gelu_0`.
        source: source code for Triton.
    """

    namespace = "inductor"
    is_view = False

    def __init__(self, name: str, source: str) -> None:
        self._name = _NUMBER.sub("", name.removeprefix("triton_"))
        self._schema = SimpleNamespace(name=self.name(), arguments=())
        self.tags = (torch.Tag.pointwise,) if "_poi_" in name else ()
        signature = _SIGNATURE.search(source)
        names = [each.split(":")[0].strip() for each in signature[1].split(",")] if signature else []
        self._reads = [name.startswith(("in_ptr", "in_out_ptr")) for name in names]
        self._writes = [name.startswith(("out_ptr", "in_out_ptr")) for name in names]
        self._sizes = [name.endswith("numel") for name in names]

    def __str__(self) -> str:
        return f"{self.namespace}.{self._name}"

    def name(self) -> str:
        """Name with the namespace, as an operator's."""
        return f"{self.namespace}::{self._name}"

    def run(self, *args: Any, **_options: Any) -> None:
        """Records the tensors that the kernel reads and writes, in place of a launch."""
        num_elements = math.prod(size for size, is_size in zip(args, self._sizes, strict=False) if is_size)
        read = tuple(
            _at_most(each, num_elements)
            for each, reads in zip(args, self._reads, strict=False)
            if reads and isinstance(each, torch.Tensor)  # one number of the CPU is passed as such
        )
        written = [each for each, writes in zip(args, self._writes, strict=False) if writes]
        MODES[-1].launched(self, read, written)


def _at_most(tensor: torch.Tensor, num_elements: int) -> torch.Tensor:
    """Part of a tensor that a kernel of `num_elements` can read, such as the rows of an embedding."""
    if tensor.numel() <= num_elements:
        return tensor
    with MODES[-1].unobserved():
        return torch.as_strided(tensor, (num_elements,), (1,))


def install() -> None:
    """Replaces what wrappers and the generation of wrappers call, in this process, for good."""
    inductor.EMPTY_STRIDED.replace(_empty_strided)
    inductor.REINTERPRET_TENSOR.replace(_reinterpreted)
    inductor.replace_raw_stream(lambda _device: 0)
    inductor.TRITON_KERNEL.replace(_kernel)
    written = inductor.WRITTEN_CODE.get()

    def kept(content: Any, extension: str, *args: Any, **options: Any) -> tuple[str, str]:
        """Key and path of generated code; Python's is kept in memory and not written to a file."""
        return _kept(content) if extension == "py" else written(content, extension, *args, **options)

    inductor.WRITTEN_CODE.replace(kept)
    inductor.CODE_OF_KEY.replace(_imported)


def source_of(path: str) -> str:
    """Generated code by the path that its frames name."""
    return _sources[path]


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=GPU)


def _reinterpreted(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    """View of a buffer, as the compiled step makes it without calling an operator."""
    with MODES[-1].unobserved():
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _kernel(_compiler: object, name: str, source: str, device_str: str = "cuda") -> FusedKernel:  # noqa: ARG001 - PyTorch names it
    return FusedKernel(name, source)


def _kept(source: str) -> tuple[str, str]:
    key = f"{len(_sources):x}"
    path = f"<compiled {key}>"
    _sources[path] = source
    return key, path


def _imported(key: str, path: str, **_options: bool) -> ModuleType:
    """Module of generated code that was kept; of a kernel's code, one that holds its stand-in."""
    module = ModuleType(f"autofit_compiled_{key}")
    module.__file__ = path
    vars(module)["key"] = key
    if not _WRAPPER.search(_sources[path]):
        names = _FUNCTION.findall(_sources[path])
        vars(module).update({name: FusedKernel(name, _sources[path]) for name in names})
        return module
    exec(compile(_sources[path], path, "exec", dont_inherit=True), vars(module))  # noqa: S102 - PyTorch wrote it
    return module
