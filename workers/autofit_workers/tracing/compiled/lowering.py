"""Makes PyTorch's compiler run for the fake GPU, in this process, for good."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autofit_workers.pytorch import inductor
from autofit_workers.pytorch.dispatch import TorchDispatchMode, disable_current_modes
from autofit_workers.tracing.compiled import cuda_graphs, devices, provenance, wrapper
from autofit_workers.tracing.fake import fake_gpu

# Packages that follow a step, which Dynamo leaves alone; others hold models, parts of steps, wrappers of the
# user's calls and stand-ins for libraries, which Dynamo has to look through.
_FOLLOWING = tuple(
    f"autofit_workers.{part}"
    for part in (
        "pytorch",
        "tracing.compiled.autotuning",
        "tracing.compiled.cuda_graphs",
        "tracing.compiled.devices",
        "tracing.compiled.lowering",
        "tracing.compiled.provenance",
        "tracing.compiled.wrapper",
        "tracing.fake",
        "tracing.host",
        "tracing.kernels.following",
        "tracing.kernels.own_operators",
        "tracing.kernels.registry",
        "tracing.kernels.triton",
        "tracing.recording",
        "tracing.values",
        "trials",
    )
)
# Modules of `deprecated`, whose wrapper only warns and calls. Dynamo compiles its frame, since 2.13 that of
# `torch.distributed.all_gather_into_tensor` too, whose own code it leaves alone. It then asks an argument for
# its gradient, which C++ refuses for a view that was changed in place under `no_grad`.
_OF_DEPRECATED = ("typing_extensions", "warnings")
_CUDA_VERSION = "13.0"  # of PyTorch 2.13's default build; a CPU build has none
_HASH = "0" * 64  # in place of a hash of Triton's files, which names compiled kernels
_CPU = torch.device("cpu")


@functools.cache
def install() -> None:
    """Patches Dynamo, AOTAutograd and Inductor.

    Raises:
        AttributeError, ImportError: this release of PyTorch has a compiler that is not known.
    """
    for part in (*_FOLLOWING, *_OF_DEPRECATED):
        inductor.leave_alone(part)
    mode: Any = fake_gpu.FakeGpuMode
    mode.__torch_dispatch__ = inductor.disable(mode.__torch_dispatch__)
    devices.install()
    wrapper.install()
    provenance.install()
    cuda_graphs.install()
    _let_dynamo_see_a_card()
    _let_passes_run_without_a_card()
    _set_configuration()
    inductor.AVOID_DEVICE_INIT.replace(property(lambda _mode: True))
    convert = inductor.CONVERT_FRAME.get()

    def convert_without_modes(*args: Any, **kwargs: Any) -> Any:
        with disable_current_modes():
            return convert(*args, **kwargs)

    inductor.CONVERT_FRAME.replace(convert_without_modes)
    inductor.HAS_TRITON.replace(lambda *_device: True)
    inductor.TRITON_HASH.replace(lambda: _HASH)
    inductor.TRITON_ATTRIBUTES.replace(inductor.attributes_as_dict)


def _let_dynamo_see_a_card() -> None:
    """Makes the compiler's interface of CUDA describe the fake GPU."""
    properties = torch.cuda.get_device_properties(0)
    inductor.constant_types.add(type(properties))
    interface: Any = inductor.CUDA_INTERFACE
    answers: dict[str, Any] = {
        "get_device_properties": properties,
        "current_device": 0,
        "device_count": 1,
        "is_triton_capable": properties.major >= 7,
        "raise_if_triton_unavailable": None,
        "get_raw_stream": 0,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "memory_allocated": 0,
    }
    for name, answer in answers.items():
        setattr(interface, name, staticmethod(_answering(answer)))
    interface.Worker.get_device_properties = staticmethod(_answering(properties))
    inductor.caching_worker_device_properties["cuda"] = [properties]
    version: Any = torch.version
    version.cuda = version.cuda or _CUDA_VERSION


def _answering(answer: Any) -> Any:
    """New function that returns `answer`; a separate one each, as Dynamo refuses a function of two names."""
    return lambda *_args, **_kwargs: answer


def _let_passes_run_without_a_card() -> None:
    """Lets Inductor's passes run that make real tensors on the GPU."""
    patterns = inductor.ATTENTION_PATTERNS.get()

    def patterns_without_card(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with fake_gpu.unseen():
            yield from patterns(*args, **kwargs)

    inductor.ATTENTION_PATTERNS.replace(patterns_without_card)
    deduced = inductor.DEDUCED_VALUE.get()

    def deduced_on_cpu(folder: Any, node: Any) -> Any:
        with _OnCpu():
            return deduced(folder, node)

    inductor.DEDUCED_VALUE.replace(deduced_on_cpu)
    make_folder = inductor.MAKE_FOLDER.get()

    def made_on_cpu(folder: Any, *args: Any, **kwargs: Any) -> None:
        with _OnCpu():
            make_folder(folder, *args, **kwargs)

    inductor.MAKE_FOLDER.replace(made_on_cpu)
    real_tensors = inductor.REAL_TENSORS.get()

    @contextmanager
    def real_tensors_on_cpu() -> Iterator[Any]:
        with real_tensors() as modes, _OnCpu():
            yield modes

    inductor.REAL_TENSORS.replace(real_tensors_on_cpu)


class _OnCpu(TorchDispatchMode):
    """Mode that makes tensors on the CPU, where their values are real, in place of another device."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args = tuple(_CPU if isinstance(each, torch.device) else each for each in args)
        kwargs = {name: _CPU if name == "device" and each else each for name, each in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _set_configuration() -> None:
    """Sets what a trace needs: no caches, no files, no checks of real memory, and provenance."""
    config: Any = inductor.inductor_config
    config.fx_graph_cache = False
    config.size_asserts = False
    config.alignment_asserts = False
    config.compile_threads = 1
    config.trace.provenance_tracking_level = 1
    autograd: Any = inductor.functorch_config
    autograd.enable_autograd_cache = False
    if hasattr(autograd, "graphsafe_rng_functionalization"):  # since 2.7; wants a generator of the driver's
        autograd.graphsafe_rng_functionalization = False
