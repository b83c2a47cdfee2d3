"""Convolution plans from libcudnn itself, for a card that is not in the machine.

Since 9.8 cuDNN plans from a description of a device instead of a device ("Deviceless ahead-of-time
compilation" of its frontend's documentation). This module asks it through its C interface as PyTorch
does: the same descriptors, heuristic mode, order and filters (`build_opgraph`,
`get_generator_sources` and `filterEngineConfigs` of aten/src/ATen/native/cudnn/Conv_v8.cpp).

Numbers are those of `cudnn_graph.h`, which cuDNN keeps within a major version.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from autofit_workers.replay.plans import driver_stub
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.work import Convolution, ConvPass

MINIMUM_VERSION = 90800  # the first that plans without a device


class CudnnError(RuntimeError):
    """libcudnn is missing, too old, or refuses a request."""


class _Kind(IntEnum):
    """Types of cuDNN's backend descriptors."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    ENGINE_HEURISTICS = 4
    PLAN = 5
    FORWARD = 10
    BACKWARD_FILTER = 11
    BACKWARD_DATA = 12
    GRAPH = 15
    TENSOR = 17
    DEVICE_PROPERTIES = 38


class _Type(IntEnum):
    """Types of attribute values of cuDNN's backend descriptors."""

    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


class _Attribute(IntEnum):
    """Attributes of cuDNN's backend descriptors, by number."""

    CONVOLUTION_COMPUTE_TYPE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    HEURISTICS_MODE = 200
    HEURISTICS_GRAPH = 201
    HEURISTICS_RESULTS = 202
    HEURISTICS_DEVICE = 204
    CONFIG_ENGINE = 300
    PLAN_CONFIG = 401
    PLAN_WORKSPACE = 402
    PLAN_DEVICE = 407
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_ID = 906
    ENGINE_INDEX = 1301
    ENGINE_NUMERICAL_NOTES = 1303
    DEVICE_JSON = 2702


# Attributes of the three operations: alpha, beta, convolution, input, weight, output.
_OPERATIONS = {
    ConvPass.FPROP: (_Kind.FORWARD, (700, 701, 702, 704, 703, 705)),
    ConvPass.DGRAD: (_Kind.BACKWARD_DATA, (706, 707, 708, 710, 709, 711)),
    ConvPass.WGRAD: (_Kind.BACKWARD_FILTER, (712, 713, 714, 716, 715, 717)),
}
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_CROSS_CORRELATION = 1
_MODE_INSTANT, _MODE_FALLBACK = 0, 2
_NOTE_TENSOR_CORE, _NOTE_DOWN_CONVERTS, _NOTE_NONDETERMINISTIC = 0, 1, 4
_MAX_NOTES = 16
# `getAlignment` of Conv_v8.cpp stops at 32 bytes, which every block of the allocator has.
_ALIGNMENT_BYTES = 32


class Cudnn:
    """Loaded libcudnn, by which plans are queried; load it once per process, as it keeps global state."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cudnnGetVersion.restype = ctypes.c_size_t
        library.cudnnGetErrorString.restype = ctypes.c_char_p
        self.version: int = library.cudnnGetVersion()
        if self.version < MINIMUM_VERSION:
            raise CudnnError(
                f"cuDNN {dotted(self.version)} plans only on a GPU: "
                f"install {dotted(MINIMUM_VERSION)} or newer"
            )

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Loads a libcudnn and the libraries of the environment's NVIDIA packages that it needs.

        Args:
            path: path of the library; None for the one in the Python environment, which PyTorch would load.

        Raises:
            CudnnError: no libcudnn is installed, it cannot be loaded, or it is too old.
        """
        path = path or find_library("libcudnn.so.9")
        if path is None:
            raise CudnnError(
                "libcudnn is not installed: pip install -c constraints.txt '.[cudnn]', in autofit's checkout"
            )
        try:
            driver_stub.load()
            for name in ("libnvrtc.so.*[0-9]", "libcublasLt.so.*", "libcublas.so.*"):
                needed = find_library(name)
                if needed is not None:
                    ctypes.CDLL(str(needed), mode=ctypes.RTLD_GLOBAL)
            return cls(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
        except OSError as error:
            raise CudnnError(f"libcudnn cannot be loaded ({error})") from error

    def device(self, properties_json: str) -> Descriptor:
        """Returns the cuDNN descriptor of a card, from its JSON text (`DeviceProperties.to_json`)."""
        text = properties_json.encode() + b"\0"
        device = self._make(_Kind.DEVICE_PROPERTIES)
        device.set(_Attribute.DEVICE_JSON, _Type.CHAR, ctypes.create_string_buffer(text, len(text)))
        return device.finalized()

    def plans(self, call: Convolution, device: Descriptor) -> tuple[Plan, ...]:
        """Plans that PyTorch would try for a convolution, in the order of trying; empty if cuDNN has none.

        The plans of cuDNN's heuristic come first, then those of its fallback list. Plans that round their
        inputs to another type are left out of both, as in PyTorch.
        """
        with contextlib.ExitStack() as owner:
            graph = self._graph(call, owner)
            modes = (_MODE_INSTANT, _MODE_FALLBACK)
            found = [plan for mode in modes for plan in self._planned(graph, device, mode)]
        return tuple(dict.fromkeys(found))

    def _planned(self, graph: Descriptor, device: Descriptor, mode: int) -> Iterator[Plan]:
        """Yields the plans that one of cuDNN's heuristic modes proposes for a convolution."""
        with self._make(_Kind.ENGINE_HEURISTICS) as heuristics:
            heuristics.set(_Attribute.HEURISTICS_GRAPH, _Type.DESCRIPTOR, _pointers(graph))
            heuristics.set(_Attribute.HEURISTICS_MODE, _Type.HEURISTIC_MODE, _int32s(mode))
            heuristics.set(_Attribute.HEURISTICS_DEVICE, _Type.DESCRIPTOR, _pointers(device))
            try:
                heuristics.finalized()
            except CudnnError:
                return  # this mode has no plan for the operation
            num_results = heuristics.count(_Attribute.HEURISTICS_RESULTS, _Type.DESCRIPTOR)
            configs = [self._make(_Kind.ENGINE_CONFIG) for _ in range(num_results)]
            num_given = heuristics.get(_Attribute.HEURISTICS_RESULTS, _Type.DESCRIPTOR, _pointers(*configs))
            for config in configs[:num_given]:
                with config:
                    plan = self._plan(config, device)
                if plan is not None:
                    yield plan

    def _plan(self, config: Descriptor, device: Descriptor) -> Plan | None:
        """Makes a plan from one of cuDNN's engine configurations (a kernel family with its settings).

        Returns:
            The plan; None if PyTorch would skip the configuration.
        """
        with self._make(_Kind.ENGINE) as engine:
            config.get(_Attribute.CONFIG_ENGINE, _Type.DESCRIPTOR, _pointers(engine))
            notes = (ctypes.c_int32 * _MAX_NOTES)()
            num_notes = engine.get(_Attribute.ENGINE_NUMERICAL_NOTES, _Type.NUMERICAL_NOTE, notes)
            index = (ctypes.c_int64 * 1)()
            engine.get(_Attribute.ENGINE_INDEX, _Type.INT64, index)
        told = set(notes[:num_notes])
        if _NOTE_DOWN_CONVERTS in told:
            return None
        with self._make(_Kind.PLAN) as plan:
            plan.set(_Attribute.PLAN_CONFIG, _Type.DESCRIPTOR, _pointers(config))
            plan.set(_Attribute.PLAN_DEVICE, _Type.DESCRIPTOR, _pointers(device))
            try:
                plan.finalized()
            except CudnnError:
                return None  # PyTorch, too, goes on to the next if a plan cannot be built
            workspace = (ctypes.c_int64 * 1)()
            plan.get(_Attribute.PLAN_WORKSPACE, _Type.INT64, workspace)
        return Plan(
            engine=index[0],
            workspace_bytes=workspace[0],
            uses_tensor_cores=_NOTE_TENSOR_CORE in told,
            is_deterministic=_NOTE_NONDETERMINISTIC not in told,
        )

    def _graph(self, call: Convolution, owner: contextlib.ExitStack) -> Descriptor:
        """Builds the operation graph that describes one convolution to cuDNN.

        Args:
            call: the convolution.
            owner: keeps the descriptors that the graph refers to; they are destroyed when it closes.
        """

        def make(kind: _Kind) -> Descriptor:
            return owner.enter_context(self._make(kind))

        kind, (alpha, beta, convolution_key, x_key, w_key, y_key) = _OPERATIONS[call.conv_pass]
        convolution = make(_Kind.CONVOLUTION)
        spatial = _at_least_2d(call)
        compute = _DATA_TYPES["float64" if call.dtype == "float64" else "float32"]
        convolution.set(_Attribute.CONVOLUTION_COMPUTE_TYPE, _Type.DATA_TYPE, _int32s(compute))
        convolution.set(_Attribute.CONVOLUTION_MODE, _Type.CONVOLUTION_MODE, _int32s(_CROSS_CORRELATION))
        convolution.set(_Attribute.CONVOLUTION_SPATIAL_DIMS, _Type.INT64, _int64s(len(spatial.stride)))
        convolution.set(_Attribute.CONVOLUTION_DILATIONS, _Type.INT64, _int64s(*spatial.dilation))
        convolution.set(_Attribute.CONVOLUTION_STRIDES, _Type.INT64, _int64s(*spatial.stride))
        convolution.set(_Attribute.CONVOLUTION_PRE_PADDINGS, _Type.INT64, _int64s(*spatial.padding))
        convolution.set(_Attribute.CONVOLUTION_POST_PADDINGS, _Type.INT64, _int64s(*spatial.padding))
        operation = make(kind)
        scalar = ctypes.c_double if call.dtype == "float64" else ctypes.c_float
        scalar_type = _Type.DOUBLE if call.dtype == "float64" else _Type.FLOAT
        operation.set(alpha, scalar_type, (scalar * 1)(1.0))
        operation.set(beta, scalar_type, (scalar * 1)(0.0))
        operation.set(convolution_key, _Type.DESCRIPTOR, _pointers(convolution.finalized()))
        shapes = (spatial.input_shape, spatial.weight_shape, spatial.output_shape)
        for key, name, shape in zip((x_key, w_key, y_key), "xwy", shapes, strict=True):
            tensor = make(_Kind.TENSOR)
            strides = strides_of(shape, channels_last=call.channels_last)
            tensor.set(_Attribute.TENSOR_ALIGNMENT, _Type.INT64, _int64s(_ALIGNMENT_BYTES))
            tensor.set(_Attribute.TENSOR_DATA_TYPE, _Type.DATA_TYPE, _int32s(_DATA_TYPES[call.dtype]))
            tensor.set(_Attribute.TENSOR_DIMENSIONS, _Type.INT64, _int64s(*shape))
            tensor.set(_Attribute.TENSOR_STRIDES, _Type.INT64, _int64s(*strides))
            tensor.set(_Attribute.TENSOR_ID, _Type.INT64, _int64s(ord(name)))
            operation.set(key, _Type.DESCRIPTOR, _pointers(tensor.finalized()))
        graph = make(_Kind.GRAPH)
        graph.set(_Attribute.GRAPH_OPERATIONS, _Type.DESCRIPTOR, _pointers(operation.finalized()))
        return graph.finalized()

    def _make(self, kind: _Kind) -> Descriptor:
        return Descriptor(self._library, kind)


class Descriptor:
    """Backend descriptor of cuDNN, destroyed at the end of its `with` block or when unreferenced."""

    def __init__(self, library: ctypes.CDLL, kind: _Kind) -> None:
        self._library = library
        self._kind = kind
        self.pointer = ctypes.c_void_p()
        self._check(library.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(self.pointer)), "create")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._destroy()

    def __del__(self) -> None:
        self._destroy()

    def set(self, attribute: int, kind: int, values: ctypes.Array[Any]) -> None:
        count = ctypes.c_int64(len(values))
        status = self._library.cudnnBackendSetAttribute(
            self.pointer, int(attribute), int(kind), count, ctypes.byref(values)
        )
        self._check(status, f"attribute {attribute}")

    def get(self, attribute: int, kind: int, values: ctypes.Array[Any]) -> int:
        """Reads an attribute's values from the descriptor; returns the number of values.

        Args:
            attribute: cuDNN's number of the attribute.
            kind: cuDNN's number of the values' type.
            values: array that the values are written to.
        """
        count = ctypes.c_int64()
        status = self._library.cudnnBackendGetAttribute(
            self.pointer,
            int(attribute),
            int(kind),
            ctypes.c_int64(len(values)),
            ctypes.byref(count),
            ctypes.byref(values),
        )
        self._check(status, f"attribute {attribute}")
        return count.value

    def count(self, attribute: int, kind: int) -> int:
        """Number of values that an attribute of the descriptor has.

        Args:
            attribute: cuDNN's number of the attribute.
            kind: cuDNN's number of the values' type.
        """
        count = ctypes.c_int64()
        status = self._library.cudnnBackendGetAttribute(
            self.pointer, int(attribute), int(kind), ctypes.c_int64(0), ctypes.byref(count), None
        )
        self._check(status, f"attribute {attribute}")
        return count.value

    def finalized(self) -> Self:
        self._check(self._library.cudnnBackendFinalize(self.pointer), "finalize")
        return self

    def _destroy(self) -> None:
        pointer, self.pointer = self.pointer, ctypes.c_void_p()
        if pointer:
            self._library.cudnnBackendDestroyDescriptor(pointer)

    def _check(self, status: int, what: str) -> None:
        if status:
            reason = self._library.cudnnGetErrorString(status).decode()
            raise CudnnError(f"cuDNN: {what} of {self._kind.name.lower()}: {reason}")


def find_library(pattern: str) -> Path | None:
    """Path of the first library matching `pattern` in the environment's NVIDIA packages, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = (path for folder in folders for path in sorted(Path(folder).glob(f"*/lib/{pattern}")))
    return next(found, None)


def dotted(version: int) -> str:
    """Version number of cuDNN in dotted form: `90100` as `9.1.0`."""
    major, rest = divmod(version, 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def strides_of(shape: Sequence[int], *, channels_last: bool) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    order = list(range(len(shape)))
    if channels_last:
        order = [0, *order[2:], 1]
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def _at_least_2d(call: Convolution) -> Convolution:
    """Returns a 1-D convolution as a 2-D one of height 1, as PyTorch does (`view1d_as_2d`); others as is."""
    if len(call.stride) > 1:
        return call

    def flat(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:2], 1, *shape[2:])

    return dataclasses.replace(
        call,
        input_shape=flat(call.input_shape),
        weight_shape=flat(call.weight_shape),
        output_shape=flat(call.output_shape),
        stride=(1, *call.stride),
        padding=(0, *call.padding),
        dilation=(1, *call.dilation),
    )


def _int64s(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _int32s(*values: int) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(values))(*values)


def _pointers(*descriptors: Descriptor) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(descriptors))(*(d.pointer for d in descriptors))
