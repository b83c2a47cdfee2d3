"""Stand-in for Triton except `triton.language`: its kernels can be launched, but a launch does nothing.

Functions that Python calls behave as in release 3.7, for example `cdiv`, autotuning with `prune_configs_by`
and hooks, heuristics, and a driver's answers about the card.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from autofit_workers.tracing.kernels import triton
from autofit_workers.tracing.kernels.stand_ins import triton_graphs

__all__ = [
    "Autotuner",
    "CompilationError",
    "CompileTimeAssertionFailure",
    "CompiledKernel",
    "Config",
    "FileCacheManager",
    "Heuristics",
    "InterpreterError",
    "JITFunction",
    "KernelInterface",
    "MockTensor",
    "OutOfResources",
    "PTXASError",
    "TensorDescriptor",
    "TensorWrapper",
    "TritonError",
    "autotune",
    "backends",
    "cdiv",
    "do_bench",
    "do_bench_cudagraph",
    "driver",
    "heuristics",
    "jit",
    "next_power_of_2",
    "reinterpret",
    "set_allocator",
]

CompiledKernel = triton.Launch
driver = SimpleNamespace(active=triton.Driver())
driver.set_active = functools.partial(setattr, driver, "active")
driver.reset_active = lambda: None
backends: dict[str, Any] = {}


class TritonError(Exception):
    """Base of Triton's errors; the stand-in raises none of them."""


class CompilationError(TritonError):
    """Triton's error for a kernel that cannot be compiled."""


class CompileTimeAssertionFailure(CompilationError):  # noqa: N818 - Triton's name
    """Triton's error for a kernel whose static assertion fails."""


class InterpreterError(TritonError):
    """Triton's error for a kernel that cannot be interpreted."""


class PTXASError(TritonError):
    """Triton's error for a kernel that cannot be assembled."""


class OutOfResources(TritonError):  # noqa: N818 - Triton's name
    """Triton's error for a kernel that takes more registers or shared memory than a card has."""


def cdiv(x: int, y: int) -> int:
    """Quotient of `x` by `y`, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """Smallest power of 2 that is not below `n`; 0 where `n` is not positive."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


class KernelInterface:
    """Base of the kernels that can be launched with a grid."""

    run: Callable[..., Any]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)

    def warmup(self, *args: Any, grid: Any = None, **options: Any) -> Any:
        """Runs the kernel with `warmup=True`, for which Triton only compiles it."""
        return self.run(*args, grid=grid, warmup=True, **options)


class JITFunction(KernelInterface):
    """Triton kernel made of a Python function."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        self.params = tuple(inspect.signature(fn).parameters.values())
        self.arg_names = [parameter.name for parameter in self.params]
        self.do_not_specialize = options.get("do_not_specialize") or ()
        self.written = triton_graphs.written_by(fn)
        functools.update_wrapper(self, fn)

    def run(self, *args: Any, **options: Any) -> Any:
        """Launches nothing; in compiled code, puts the launch into the graph."""
        if torch.compiler.is_compiling():
            name = self.fn.__name__
            triton_graphs.launch_in_graph(name, self.arg_names, self.written, args, options)
            return None
        return triton.launch(self, *args, **options)

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """Does nothing; Triton would call the hook before a launch."""

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        raise RuntimeError("a kernel of Triton is launched with a grid: kernel[grid](…)")


class Config:
    """Launch settings of a Triton kernel, such as `num_warps`, of which an autotuner tries several."""

    def __init__(  # noqa: PLR0917 - Triton's signature
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[..., Any] | None = None,
        **rest: Any,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook = maxnreg, pre_hook
        vars(self).update(rest)

    def all_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the kernel, together with the options of Triton's compiler."""
        told = ("num_warps", "num_stages", "num_ctas", "maxnreg")
        return {**self.kwargs, **{n: v for n in told if (v := getattr(self, n)) is not None}}

    def __repr__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())


class Autotuner(KernelInterface):
    """Triton kernel that times its configurations once for each combination of the arguments in `key`."""

    def __init__(  # noqa: PLR0917 - Triton's signature
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: dict[str, Any] | None = None,
        warmup: int | None = None,  # noqa: ARG002 - Triton's
        rep: int | None = None,  # noqa: ARG002
        use_cuda_graph: bool = False,
        do_bench: Any = None,  # noqa: ARG002
        cache_results: bool = False,
    ) -> None:
        self.fn = fn
        self.base_fn = _innermost(fn)
        self.arg_names = list(arg_names)
        self.configs = list(configs) or [Config({})]
        self.keys = list(key)
        self.cache: dict[Any, Config] = {}
        self.nargs: dict[str, Any] = {}
        self.cache_results = cache_results
        self.use_cuda_graph = use_cuda_graph
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.restore_copies: dict[str, Any] = {}
        self.user_defined_pre_hook, self.user_defined_post_hook = bool(pre_hook), bool(post_hook)
        self.pre_hook = pre_hook or self._reset
        self.post_hook = post_hook or self._restore
        pruning = prune_configs_by or {}
        self.early_config_prune = pruning.get("early_config_prune")
        self.perf_model = pruning.get("perf_model")
        self.configs_top_k = pruning.get("top_k", 1.0)
        self.best_config = self.configs[0]

    _bench = triton.tune

    def run(self, *args: Any, **options: Any) -> Any:
        """Launches the kernel with the best configuration, after timing all of them for a new key.

        In compiled code the first configuration is launched, as PyTorch's compiler times them apart.
        """
        if torch.compiler.is_compiling():
            return self.fn.run(*args, **options)
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = self.configs[0]
        if len(self.configs) > 1:
            key = self._key({**self.nargs, **options})
            if key not in self.cache:
                for each in self.prune_configs(options):
                    self._bench(*args, config=each, **options)
                    self.cache.setdefault(key, each)
                config = self.cache[key]
                self.pre_hook({**self.nargs, **options, **config.all_kwargs()}, reset_only=True)
            config = self.cache[key]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **options, **config.all_kwargs()})
        returned = self.fn.run(*args, **{**options, **config.all_kwargs()})
        self.nargs = {}
        return returned

    def prune_configs(self, options: dict[str, Any]) -> list[Config]:
        """Configurations that are still to be timed after `prune_configs_by` was applied."""
        early, model, most = self.early_config_prune, self.perf_model, self.configs_top_k
        configs = self.configs if early is None else list(early(self.configs, self.nargs, **options))
        most = int(len(self.configs) * most) if isinstance(most, float) and most <= 1 else int(most)
        if model is None or len(configs) <= most:
            return configs
        return sorted(configs, key=lambda c: model(**self.nargs, **options, **c.all_kwargs()))[:most]

    def _key(self, given: dict[str, Any]) -> tuple[Any, ...]:
        given = {name: value for name, value in given.items() if name in self.arg_names}
        types = (str(value.dtype) for value in given.values() if hasattr(value, "dtype"))
        return (*(given[name] for name in self.keys if name in given), *types)

    def _reset(self, given: dict[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            if given[name] is not None:
                given[name].zero_()
        if not reset_only:
            self.restore_copies = {
                name: given[name].clone() for name in self.restore_value if given[name] is not None
            }

    def _restore(self, given: dict[str, Any], exception: Any = None) -> None:  # noqa: ARG002 - Triton's
        for name, copy in self.restore_copies.items():
            given[name].copy_(copy)
        self.restore_copies = {}


class Heuristics(KernelInterface):
    """Triton kernel some of whose arguments are computed from the others."""

    def __init__(self, fn: Any, arg_names: Sequence[str], values: dict[str, Callable[..., Any]]) -> None:
        self.fn, self.arg_names, self.values = fn, list(arg_names), values

    def run(self, *args: Any, **options: Any) -> Any:
        for name, work_out in self.values.items():
            options[name] = work_out({**dict(zip(self.arg_names, args, strict=False)), **options})
        return self.fn.run(*args, **options)


def _innermost(fn: Any) -> Any:
    while not inspect.isfunction(fn) and hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def jit(fn: Any = None, **options: Any) -> Any:
    """Makes a kernel of a Python function; without a function, returns a decorator."""
    return functools.partial(jit, **options) if fn is None else JITFunction(fn, **options)


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Callable[[Any], Autotuner]:
    """Decorator that tunes a kernel among `configs`, once for each combination of the arguments in `key`."""
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, **options)


def heuristics(values: dict[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Decorator that computes some of a kernel's arguments from the others."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)


def do_bench(
    fn: Callable[[], Any], *_args: Any, quantiles: Sequence[float] | None = None, **_rest: Any
) -> Any:
    """Runs `fn` as Triton's benchmark does, and returns a made-up time in milliseconds."""
    milliseconds = triton.timed(fn)
    return milliseconds if quantiles is None else [milliseconds] * len(quantiles)


def do_bench_cudagraph(fn: Callable[[], Any], *_args: Any, **_rest: Any) -> float:
    """Calls `fn` once and returns a made-up time in milliseconds, without the buffer of `do_bench`."""
    fn()
    return 1.0


def set_allocator(_allocator: Any) -> None:
    """Does nothing; Triton would allocate kernels' scratch memory with `_allocator`."""


def reinterpret(tensor: Any, _dtype: Any) -> Any:
    """Returns `tensor` itself; Triton would return a view as another dtype."""
    return tensor


class _Holder:
    """Base of stand-in classes whose constructors accept and ignore any arguments."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        """Ignores its arguments."""


class FileCacheManager(_Holder):
    """Stand-in for Triton's cache of compiled kernels on disk."""


class MockTensor(_Holder):
    """Stand-in for Triton's `MockTensor`, which has a dtype but no data."""


class TensorWrapper(_Holder):
    """Stand-in for Triton's view of a tensor as another dtype; see `reinterpret`."""


class TensorDescriptor:
    """Stand-in for Triton's `TensorDescriptor`, by which kernels load tiles through the card's TMA.

    Hooks of kernels that are tuned read and set its fields (triton/tools/tensor_descriptor.py).
    """

    def __init__(  # noqa: PLR0917 - Triton's signature
        self,
        base: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> None:
        self.base, self.shape, self.strides = base, list(shape), list(strides)
        self.block_shape, self.padding = list(block_shape), padding
        self.round_f32_to_tf32 = round_f32_to_tf32

    @classmethod
    def from_tensor(
        cls, tensor: Any, block_shape: Sequence[int], padding: str = "zero", **options: Any
    ) -> TensorDescriptor:
        return cls(tensor, tensor.shape, tensor.stride(), block_shape, padding, **options)
