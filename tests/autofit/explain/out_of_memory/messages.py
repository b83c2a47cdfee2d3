"""Messages of out-of-memory errors around PyTorch's and its libraries' wordings, and what each states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autofit.explain.out_of_memory.diagnosis import Cause

MIB, GIB = 1 << 20, 1 << 30
_ADVICE_1 = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
    "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
_ADVICE_2 = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    "to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


@dataclass(frozen=True)
class Message:
    """Text of an error, with the sizes, the cause and who is told to have run out of memory."""

    name: str
    text: str
    cause: Cause
    who: str = "PyTorch's allocator on CUDA"
    sizes: dict[str, Any] = field(default_factory=dict)


MESSAGES = (
    Message(
        "1.12",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 10.76 GiB total capacity; "
        "9.61 GiB already allocated; 10.44 MiB free; 9.70 GiB reserved in total by PyTorch)" + _ADVICE_1,
        Cause.FULL,
        sizes={
            "requested_bytes": 20 * MIB,
            "device": 3,
            "total_bytes": round(10.76 * GIB),
            "allocated_bytes": round(9.61 * GIB),
            "unallocated_bytes": round(9.70 * GIB) - round(9.61 * GIB),
            "process_bytes": None,
        },
    ),
    Message(
        "1.13, fragmented",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 15.78 GiB total "
        "capacity; 8.40 GiB already allocated; 1.20 GiB free; 13.30 GiB reserved in total by PyTorch)"
        + _ADVICE_1,
        Cause.FRAGMENTED,
        sizes={"requested_bytes": round(2.5 * GIB), "free_bytes": round(1.2 * GIB)},
    ),
    Message(
        "2.0, a limit of its own",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 23.69 GiB "
        "total "
        "capacity; 4.60 GiB already allocated; 18.20 GiB free; 4.74 GiB allowed; 4.70 GiB reserved in "
        "total by "
        "PyTorch)" + _ADVICE_1,
        Cause.LIMITED,
        sizes={"allowed_bytes": round(4.74 * GIB)},
    ),
    Message(
        "2.1, with its typing error",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total "
        "capacty "
        "of 23.69 GiB of which 40.69 MiB is free. Process 41 has 23.64 GiB memory in use. Of the allocated "
        "memory 22.10 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated."
        + _ADVICE_2,
        Cause.OTHER_PROCESSES,  # in a container, whose own process the driver does not name
        sizes={"total_bytes": round(23.69 * GIB), "unallocated_bytes": round(1.02 * GIB)},
    ),
    Message(
        "2.2",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total "
        "capacity "
        "of 39.39 GiB of which 830.56 MiB is free. Including non-PyTorch memory, this process has 38.57 GiB "
        "memory in use. Of the allocated memory 37.60 GiB is allocated by PyTorch, and 495.50 MiB is "
        "reserved "
        "by PyTorch but unallocated." + _ADVICE_2,
        Cause.FULL,
        sizes={"process_bytes": round(38.57 * GIB), "device": 1},
    ),
    Message(
        "2.5, wrapped over lines",
        "torch.OutOfMemoryError: CUDA out of memory.\nTried to allocate 20.00 MiB.\nGPU 0 has a total "
        "capacity of "
        "15.51 GiB of which 12.62 MiB is free.\nProcess 1839 has 3.22 GiB memory in use.\nIncluding "
        "non-PyTorch "
        "memory, this process has 12.27 GiB memory in use.\nOf the allocated memory 11.97 GiB is "
        "allocated by "
        "PyTorch,\nand 5.27 MiB is reserved by PyTorch but unallocated.",
        Cause.OTHER_PROCESSES,
        sizes={"requested_bytes": 20 * MIB, "allocated_bytes": round(11.97 * GIB)},
    ),
    Message(
        "2.7, several processes",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 42.00 MiB. GPU 0 has a total "
        "capacity of "
        "47.27 GiB of which 9.38 MiB is free. Process 644963 has 5.59 MiB memory in use. Process 3053273 has "
        "29.04 GiB memory in use. Process 3120922 has 14.74 GiB memory in use. Including non-PyTorch memory, "
        "this process has 3.45 GiB memory in use. Of the allocated memory 3.20 GiB is allocated by "
        "PyTorch, and "
        "18.62 MiB is reserved by PyTorch but unallocated." + _ADVICE_2,
        Cause.OTHER_PROCESSES,
        sizes={
            "processes": [
                (644963, round(5.59 * MIB)),
                (3053273, round(29.04 * GIB)),
                (3120922, round(14.74 * GIB)),
            ]
        },
    ),
    Message(
        "2.9, fragmented",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total "
        "capacity of "
        "79.25 GiB of which 1.66 GiB is free. Including non-PyTorch memory, this process has 77.58 GiB "
        "memory in "
        "use. Of the allocated memory 38.12 GiB is allocated by PyTorch, and 38.41 GiB is reserved by "
        "PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        Cause.FRAGMENTED,
        sizes={"unallocated_bytes": round(38.41 * GIB)},
    ),
    Message(
        "2.11, CUDA graphs",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total "
        "capacity of "
        "23.52 GiB of which 101.25 MiB is free. Including non-PyTorch memory, this process has 23.41 GiB "
        "memory "
        "in use. Of the allocated memory 22.71 GiB is allocated by PyTorch, with 1.23 GiB allocated in "
        "private "
        "pools (e.g., CUDA Graphs), and 55.47 MiB is reserved by PyTorch but unallocated." + _ADVICE_2,
        Cause.FULL,
        sizes={"private_bytes": round(1.23 * GIB), "unallocated_bytes": round(55.47 * MIB)},
    ),
    Message(
        "2.13, allowed less",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of "
        "139.81 GiB of which 120.00 GiB is free. 13.98 GiB allowed; Of the allocated memory 13.20 GiB is "
        "allocated "
        "by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated." + _ADVICE_2,
        Cause.LIMITED,
        sizes={"allowed_bytes": round(13.98 * GIB)},
    ),
    Message(
        "2.15, a wrong shape",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 745.06 GiB. GPU 2 has a total "
        "capacity of "
        "178.36 GiB of which 150.19 GiB is free. Including non-PyTorch memory, this process has 28.16 GiB "
        "memory "
        "in use. Of the allocated memory 26.02 GiB is allocated by PyTorch, and 1.31 GiB is reserved by "
        "PyTorch "
        "but unallocated." + _ADVICE_2,
        Cause.TOO_LARGE,
        sizes={"requested_bytes": round(745.06 * GIB), "device": 2},
    ),
    Message(
        "a card without a number",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total "
        "capacity "
        "of 44.34 GiB of which 160.81 MiB is free. Including non-PyTorch memory, this process has 44.17 GiB "
        "memory in use. Of the allocated memory 43.36 GiB is allocated by PyTorch, and 396.27 MiB is "
        "reserved by "
        "PyTorch but unallocated.",
        Cause.FULL,
        sizes={"device": None, "total_bytes": round(44.34 * GIB)},
    ),
    Message(
        "nothing of PyTorch's yet",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 978.00 MiB. GPU 0 has a total "
        "capacity of "
        "15.98 GiB of which 630.00 MiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, "
        "and 0 "
        "bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting "
        "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        Cause.FULL,
        who="PyTorch's allocator on HIP",
        sizes={"allocated_bytes": 0, "unallocated_bytes": 0, "requested_bytes": 978 * MIB},
    ),
    Message(
        "ROCm before 2.1",
        "RuntimeError: HIP out of memory. Tried to allocate 1.27 GiB (GPU 0; 63.98 GiB total capacity; "
        "61.60 GiB "
        "already allocated; 822.00 MiB free; 62.95 GiB reserved in total by PyTorch)" + _ADVICE_1,
        Cause.FULL,
        who="PyTorch's allocator on HIP",
        sizes={"free_bytes": 822 * MIB},
    ),
    Message(
        "cudaMallocAsync",
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 5.53 GiB\nRequested               : 800.00 MiB\n"
        "Device limit            : 6.00 GiB\nFree (according to CUDA): 0 bytes\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 "
        "GiB\n",
        Cause.FULL,
        who="PyTorch's allocator on CUDA, cudaMallocAsync",
        sizes={"requested_bytes": 800 * MIB, "total_bytes": 6 * GIB, "free_bytes": 0, "allowed_bytes": None},
    ),
    Message(
        "MPS",
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 613.56 MB, max "
        "allowed: 18.13 GB). Tried to allocate 192.00 MB on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations.",
        Cause.FULL,
        who="PyTorch's allocator on MPS",
        sizes={"requested_bytes": 192 * MIB, "allowed_bytes": round(18.13 * GIB)},
    ),
    Message(
        "XPU",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
        "capacity of "
        "11.93 GiB of which 5.62 MiB is free. Of the allocated memory 10.43 GiB is allocated by PyTorch, and "
        "94.57 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all "
        "unoccupied "
        "cached memory.",
        Cause.FULL,
        who="PyTorch's allocator on XPU",
        sizes={"allocated_bytes": round(10.43 * GIB)},
    ),
    Message(
        "the driver",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at "
        "some "
        "other API call, so the stacktrace below might be incorrect.\nSearch for "
        "`cudaErrorMemoryAllocation' in "
        "the documentation for more information.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
        "assertions.",
        Cause.UNKNOWN,
        who="the driver",
        sizes={"requested_bytes": None},
    ),
    Message("Triton", "RuntimeError: Triton Error [CUDA]: out of memory", Cause.UNKNOWN, who="the driver"),
    Message(
        "a kernel",
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  cudaMalloc failed: "
        "cudaErrorMemoryAllocation",
        Cause.UNKNOWN,
        who="the driver",
    ),
    Message(
        "cuBLAS",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        Cause.OUTSIDE,
        who="CUBLAS",
    ),
    Message(
        "cuDNN",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED\nYou can try to repro this exception.",
        Cause.OUTSIDE,
        who="CUDNN",
    ),
    Message(
        "cuDNN 9",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        Cause.OUTSIDE,
        who="CUDNN",
    ),
    Message(
        "cuDNN without an engine",
        "RuntimeError: GET was unable to find an engine to execute this computation",
        Cause.OUTSIDE,
        who="CUDNN",
    ),
    Message(
        "NCCL",
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        Cause.OUTSIDE,
        who="NCCL",
    ),
    Message(
        "older NCCL",
        "node1:88:412 [3] include/alloc.h:103 NCCL WARN Cuda failure 'out of memory'",
        Cause.OUTSIDE,
        who="NCCL",
        sizes={"rank": None},
    ),
    Message(
        "the host",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: "
        "you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
        Cause.HOST,
        who="PyTorch's allocator on the CPU",
        sizes={"requested_bytes": 64 * GIB},
    ),
)
