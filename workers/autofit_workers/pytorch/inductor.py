"""Private names of PyTorch's compiler: Dynamo, AOTAutograd and Inductor.

    Dynamo         follows Python code and collects its operators in graphs
    AOTAutograd    makes graphs of forward and backward of them
    Inductor       lowers a graph to kernels, and generates the Python code (the wrapper) that calls them

Import this module only where something is compiled: it imports the whole compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._dynamo  # before Inductor, which imports parts of it
import torch._dynamo.trace_rules
import torch._dynamo.utils
from torch._dynamo import callback, convert_frame, device_interface
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import RestartAnalysis  # tells Dynamo to follow a function once more
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._functorch import config as functorch_config
from torch._inductor import (
    async_compile,
    codecache,
    compile_fx,
    cudagraph_trees,
    debug,
    graph,
    scheduler,
    select_algorithm,
)
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils
from torch._inductor.fx_passes import fuse_attention, joint_graph
from torch._subclasses import fake_tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _triton

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "ATTENTION_PATTERNS",
    "AVOID_DEVICE_INIT",
    "CALL_OF_OPTIMIZER",
    "CODE_OF_KEY",
    "COMPILE_TO_MODULE",
    "CONVERT_FRAME",
    "CUDA_INTERFACE",
    "DEDUCED_VALUE",
    "DISPATCH_OF_FAKE_MODE",
    "DISPATCH_OF_PROXY_MODE",
    "EMPTY_STRIDED",
    "FAKE_TENSOR_DISPATCH",
    "GRAPH_MANAGER",
    "HAS_TRITON",
    "INNER_COMPILE",
    "LOWER_NODE",
    "MAKE_FOLDER",
    "MAKE_WRAPPER",
    "META_HANDLERS",
    "REAL_TENSORS",
    "RECORD_GRAPH",
    "REINTERPRET_TENSOR",
    "SELECT_KERNEL",
    "TRITON_ATTRIBUTES",
    "TRITON_HASH",
    "TRITON_KERNEL",
    "WHOLE_COMPILE",
    "WRITTEN_CODE",
    "FunctionalTensor",
    "RestartAnalysis",
    "attributes_as_dict",
    "caching_worker_device_properties",
    "callback",
    "constant_types",
    "debug",
    "disable",
    "dynamo_config",
    "dynamo_forgets",
    "functorch_config",
    "inductor_config",
    "leave_alone",
    "replace_raw_stream",
    "say_that_memory_is_cached",
]

# What the compiler asks of a CUDA device, and the properties that it remembers of each.
CUDA_INTERFACE = device_interface.CudaInterface
caching_worker_device_properties = device_interface.caching_worker_device_properties
# Types whose values Dynamo takes for constants, such as PyTorch's properties of a card.
constant_types: set[type] = torch._dynamo.utils.common_constant_types
# Functions of a module whose code Dynamo never follows.
leave_alone = torch._dynamo.trace_rules.add
# Keeps Dynamo from following a function and what it calls.
disable = torch._dynamo.disable
# Compiles a frame; for a model in DistributedDataParallel, with the modes of the program still active.
CONVERT_FRAME = PrivateName(convert_frame.ConvertFrame, "__call__")
# Forgets all compiled code of the process.
dynamo_forgets = torch._dynamo.reset
# Calls a method of an optimizer while Dynamo follows it; `_init_group` makes its states for real.
CALL_OF_OPTIMIZER = PrivateName(OptimizerVariable, "call_method")
# Answers of fake tensors to questions about themselves, by operator.
META_HANDLERS = fake_tensor._DISPATCH_META_HANDLERS
FAKE_TENSOR_DISPATCH = PrivateName(fake_tensor.FakeTensor, "__torch_dispatch__")
# Makes a tensor that wraps another one, such as a functional tensor.
MAKE_WRAPPER = PrivateName(torch.Tensor, "_make_wrapper_subclass")
DISPATCH_OF_FAKE_MODE = PrivateName(fake_tensor.FakeTensorMode, "dispatch")
DISPATCH_OF_PROXY_MODE = PrivateName(ProxyTorchDispatchMode, "__torch_dispatch__")
# Context in which operators on constants are run for real, so that their values are known.
REAL_TENSORS = PrivateName(proxy_tensor, "unset_fake_temporarily")
# Whether fake tensors leave CUDA alone.
AVOID_DEVICE_INIT = PrivateName(fake_tensor.FakeTensorMode, "avoid_device_init")
# Compiles a graph of Dynamo's with AOTAutograd and Inductor, and each graph that AOTAutograd makes of it.
WHOLE_COMPILE = PrivateName(compile_fx, "compile_fx")
INNER_COMPILE = PrivateName(compile_fx, "compile_fx_inner")
# Chooses among the kernels that compute a product or a convolution, by benchmarks if there are several.
SELECT_KERNEL = PrivateName(select_algorithm.AlgorithmSelectorCache, "__call__")
# Makes a compiled graph run as a CUDA graph, and returns the manager of a device's CUDA graphs.
RECORD_GRAPH = PrivateName(compile_fx, "cudagraphify")
GRAPH_MANAGER = PrivateName(cudagraph_trees, "get_manager")
# Makes the example inputs of attention's patterns, on the GPU if there is one.
ATTENTION_PATTERNS = PrivateName(fuse_attention, "_get_sfdp_patterns")
# Looks for tensors of one value, to fold constants; makes one for each product with the number 0.
MAKE_FOLDER = PrivateName(joint_graph.UniformValueConstantFolder, "__init__")
# Runs an operator that makes a tensor of one value.
DEDUCED_VALUE = PrivateName(joint_graph.UniformValueConstantFolder, "_deduce_value")
HAS_TRITON = PrivateName(scheduler, "has_triton")
TRITON_HASH = PrivateName(_triton, "triton_hash_with_backend")
TRITON_ATTRIBUTES = PrivateName(inductor_utils, "get_triton_attrs_descriptor_version")
# Compiles the source code of a kernel for Triton.
TRITON_KERNEL = PrivateName(async_compile.AsyncCompile, "triton")
# Lowers an operator of a graph.
LOWER_NODE = PrivateName(graph.GraphLowering, "run_node")
# Generates a graph's wrapper and imports it.
COMPILE_TO_MODULE = PrivateName(graph.GraphLowering, "compile_to_module")
# Writes generated code to a file, and reads it as a module.
WRITTEN_CODE = PrivateName(codecache, "write")
CODE_OF_KEY = PrivateName(codecache, "_reload_python_module")
# Functions that wrappers call.
EMPTY_STRIDED = PrivateName(torch._C._dynamo.guards, "_empty_strided_cuda")
REINTERPRET_TENSOR = PrivateName(torch._C._dynamo.guards, "_reinterpret_tensor")

# Functions of `torch._C`, which lacks them in a PyTorch without CUDA.
_RAW_STREAM = "_cuda_getCurrentRawStream"
_CACHES_MEMORY = "_cuda_cudaCachingAllocator_is_enabled"


def attributes_as_dict() -> object:
    """Version in which Triton describes arguments since 3.3: a dictionary."""
    return inductor_utils.TritonAttrsDescriptorVersion.V4_DICT


def replace_raw_stream(answer: Callable[[int], int]) -> None:
    """Replaces the function that returns a device's current stream, which a PyTorch without CUDA lacks."""
    setattr(torch._C, _RAW_STREAM, answer)


def say_that_memory_is_cached() -> None:
    """Makes PyTorch say that CUDA's caching allocator is on, without which it records no CUDA graph."""
    setattr(torch._C, _CACHES_MEMORY, lambda: True)
