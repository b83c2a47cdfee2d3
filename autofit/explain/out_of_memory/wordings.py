"""Forms that PyTorch and the libraries below it give an out-of-memory error, each with its source.

A form is found by the words that it begins with; the numbers are looked for in the text after it. To add one,
write a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# What was asked for memory: an allocator with numbers, a library, or the host's allocator.
Kind = Literal["allocator", "driver", "library", "communicator", "host"]


@dataclass(frozen=True, slots=True)
class Wording:
    """Form of an out-of-memory error.

    Attributes:
        name: who ran out of memory, in words; {} stands for the group of the marker.
        kind: what asked for memory.
        marker: the words by which the error is found, as a regular expression.
        source: where the words are from.
    """

    name: str
    kind: Kind
    marker: str
    source: str


WORDINGS = (
    Wording(
        "PyTorch's allocator on {}",
        "allocator",
        r"(CUDA|HIP|XPU|MPS)(?: backend)? out of memory",
        "c10/cuda/CUDACachingAllocator.cpp, c10/xpu/XPUCachingAllocator.cpp, ATen/mps/MPSAllocator.mm",
    ),
    Wording(
        "PyTorch's allocator on CUDA, cudaMallocAsync",
        "allocator",
        r"Allocation on device \d* ?would exceed allowed memory\. \(out of memory\)",
        "c10/cuda/CUDAMallocAsyncAllocator.cpp",
    ),
    Wording(
        "PyTorch's allocator on MPS",
        "allocator",
        r"Invalid buffer size: (?=\d[\d.]* [KMGT]i?B)",
        "aten/src/ATen/mps/MPSAllocator.mm",
    ),
    Wording(
        "PyTorch's allocator on the CPU",
        "host",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        "c10/core/impl/alloc_cpu.cpp",
    ),
    Wording(
        "NCCL",
        "communicator",
        r"(?:Cuda|HIP) failure (?:\d+ )?'(?:hip: )?out of memory'",
        "src/include/checks.h of NCCL",
    ),
    Wording(
        "{}",
        "library",
        r"(CUBLAS|CUSOLVER|CUSPARSE|CUDNN|HIPBLAS|HIPSOLVER|ROCBLAS|MIOPEN)"
        r"_STATUS_(?:INTERNAL_ERROR_)?(?:DEVICE_|HOST_)?ALLOC(?:ATION)?_FAILED",
        "aten/src/ATen/cuda/Exceptions.cpp, aten/src/ATen/cudnn/Exceptions.h",
    ),
    Wording("{}", "library", r"(CUFFT)_ALLOC_FAILED", "aten/src/ATen/native/cuda/CuFFTUtils.h"),
    Wording(
        "{}",
        "library",
        r"(?:GET|FIND) was unable to find an engine to execute this computation"
        r"|[Uu]nable to find a valid (cuDNN) algorithm to run convolution",
        "aten/src/ATen/native/cudnn/Conv_v8.cpp, Conv_v7.cpp",
    ),
    Wording(
        "the driver",
        "driver",
        r"(?:CUDA|HIP)(?: driver)? error:? (?:\d+: )?out of memory"
        r"|Triton Error \[(?:CUDA|HIP)\]: out of memory"
        r"|(?:cuda|hip)ErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "c10/cuda/CUDAException.cpp, Triton's driver",
    ),
)
# Errors of other frameworks, which have other allocators.
OTHERS = (
    (
        "JAX or TensorFlow",
        r"RESOURCE_EXHAUSTED|ResourceExhaustedError|OOM when allocating tensor|jaxlib\S*XlaRuntimeError",
    ),
    ("CuPy", r"cupy\S*OutOfMemoryError"),
    ("Ray, which ends a worker because the host is full", r"ray\.exceptions\.OutOfMemoryError"),
)
_SIZE = r"(-?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?) ?(bytes|byte|B|[KMGT]i?B)\b"
# Sizes of an error by field, in the text behind its marker.
SIZES: dict[str, tuple[str, ...]] = {
    "requested": (
        rf"[Tt]ried to allocate {_SIZE}",
        rf"Requested\s*: {_SIZE}",
        rf"Invalid buffer size: {_SIZE}",
        rf"to allocate {_SIZE}",
    ),
    "total": (
        rf"total capaci?ty of {_SIZE}",  # 2.1 wrote "capacty"
        rf"{_SIZE} total capacity",
        rf"Device limit\s*: {_SIZE}",
    ),
    "free": (
        rf"of which {_SIZE} is free",
        rf"{_SIZE} free;",
        rf"Free \(according to CUDA\): {_SIZE}",
    ),
    "allowed": (
        rf"{_SIZE} allowed;",
        rf"max allowed: {_SIZE}",
        rf"PyTorch limit \(set by user-supplied memory fraction\)\s*: {_SIZE}",
    ),
    "process": (rf"this process has {_SIZE} memory in use",),
    "allocated": (
        rf"[Oo]f the allocated memory {_SIZE} is allocated by PyTorch",
        rf"{_SIZE} already allocated",
        rf"MPS allocated: {_SIZE}",
        rf"Currently allocated\s*: {_SIZE}",
    ),
    "unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "reserved": (rf"{_SIZE} reserved in total by PyTorch",),
    "private": (rf"with {_SIZE} allocated in private pools",),
    "other_allocations": (rf"other allocations: {_SIZE}",),
}
PROCESS = re.compile(rf"Process (\d{{1,10}}) has {_SIZE} memory in use")
DEVICE = re.compile(r"\bGPU (\d{1,4})\b")
