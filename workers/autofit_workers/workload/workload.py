"""Workloads that users run, and their transfer to other processes.

    WorkloadError
    ├── UnknownWorkloadError      a reference names nothing
    ├── SourceChangedError        a worker's copy differs from the reference's
    ├── CloudpickleMissingError   a workload without a file cannot be sent
    ├── InvalidBatchError         make_batch does not make the batch that was asked for (INVALID)
    └── InvalidLossError          the loss cannot be differentiated

The module does not import torch, because autofit's own process holds workloads too and never imports it.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import importlib
import pickle
import site
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autofit_workers.spec.errors import InvalidTrialError
from autofit_workers.spec.knobs.optimizer import OPTIMIZERS
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import MODES
from autofit_workers.spec.workloads.builtins import BUILTINS
from autofit_workers.spec.workloads.libraries import library_of
from autofit_workers.spec.workloads.references import (
    SourceChangedError,
    UnknownWorkloadError,
    WorkloadError,
    parse_reference,
)
from autofit_workers.workload.keywords import keyword
from autofit_workers.workload.loading import (
    FILE_MODULE_PREFIX,
    append_to_import_path,
    load_attribute,
    user_code,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "CloudpickleMissingError",
    "InvalidBatchError",
    "InvalidLossError",
    "OptimizerFactory",
    "Optimizers",
    "Workload",
    "check_batch",
    "check_loss",
    "resolve",
    "tensors_of",
]

# Optimizer argument of a workload's own step: one optimizer, or a tuple if its function made several.
Optimizers: TypeAlias = "torch.optim.Optimizer | tuple[torch.optim.Optimizer, ...]"
OptimizerFactory = Callable[["Iterable[torch.nn.Parameter]"], Optimizers]


class CloudpickleMissingError(WorkloadError):
    """cloudpickle is not installed, which is needed to send a workload without a file to another process."""


class InvalidBatchError(WorkloadError, InvalidTrialError):
    """`make_batch` returned a batch without a dimension of the batch size, so its memory means nothing."""


class InvalidLossError(WorkloadError):
    """`loss` returned something that cannot be differentiated."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Workload that a user runs: a model, its batches, its loss and its optimizer.

    Attributes:
        build_model: `build_model()` returns the `nn.Module`, on the CPU; autofit moves it to the device.
        make_batch: `make_batch(batch_size, device)` returns the input of one step on that device: a
            tensor, or anything that holds tensors, with `batch_size` as a dimension. If its size depends
            on the data, it may also take the keyword `kind`: `"typical"`, or `"worst"` for the largest
            batch that the data can make (see `autofit.worst_case_lengths`). It may take the keyword
            `layout`, a value of `--batch-layout` such as `"padded:25"`, and, if it can make samples of any
            size, `size`, such as tokens; `build_model` may take that too.
        loss: `loss(model, batch)` returns a scalar tensor; in mode `infer` only the forward pass in it
            counts.
        optimizer: one of `autofit_workers.spec.knobs.optimizer.OPTIMIZERS`, such as `"adam"`, or a function
            from the model's parameters to an optimizer. If the function's parameter is called `model`, it
            gets the model. With a `step` it may return a tuple of several optimizers.
        step: `step(model, optimizer, batch)` replaces the whole training step, for clipping, averaged
            weights, several optimizers and the like. `optimizer` is a tuple if there are several.
        mode: `train`, `infer` or `generate`.
        name: the name in tables and reports.
        size_multiple: distance between sample sizes for which kernels and patches round alike.
        max_size: largest sample size that the model was made for; None if nothing limits it.

    Raises:
        WorkloadError: the mode or the optimizer is unknown.
    """

    build_model: Callable[[], torch.nn.Module]
    make_batch: Callable[..., Any]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]
    optimizer: str | OptimizerFactory = "sgd"
    step: Callable[[torch.nn.Module, Any, Any], object] | None = None
    mode: str = "train"
    name: str = ""
    size_multiple: int = 64
    max_size: int | None = None
    # Not an argument, so that a changed copy (`dataclasses.replace`) has no reference.
    _reference: WorkloadRef | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise WorkloadError(f"a workload's mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            raise WorkloadError(
                f"a workload's optimizer must be one of {', '.join(OPTIMIZERS)}, "
                f"or a function of the parameters; got {self.optimizer!r}"
            )

    @staticmethod
    def load(
        reference: str | WorkloadRef,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
        task: str | None = None,
    ) -> Workload:
        """Loads a workload, and imports the module that defines it.

        Appends the module's folder to `sys.path`, because the module may import its neighbours later.

        Args:
            reference: a built-in's name, `torchvision:NAME`, `timm:NAME`, `hf:NAME-or-config`,
                `package.module:attribute`, `path/file.py:attribute`, or a `WorkloadRef`. The attribute is
                a `Workload`, a function that returns one, or, with `input_shape`, an `nn.Module` class or
                a function that builds one.
            input_shape: the shape of one sample, without the batch dimension, such as `(3, 224, 224)`.
            num_classes: the number of classes of the labels; the module is then trained with cross
                entropy, and without it on the mean of its output.
            task: the task that a model of transformers is trained for, such as `"text-classification"`,
                instead of the one that its configuration names.

        Raises:
            WorkloadError: the workload cannot be loaded; chained from the user's own exception, if any.
        """
        if isinstance(reference, str):
            reference = parse_reference(
                reference, input_shape=input_shape, num_classes=num_classes, task=task
            )
        elif (input_shape, num_classes, task) != (None, None, None):
            raise WorkloadError("a WorkloadRef has its own input_shape, num_classes and task: leave them out")
        return resolve(reference)

    def reference(self) -> WorkloadRef:
        """Reference by which another process loads the workload: the one it was loaded by, else a pickle.

        Raises:
            CloudpickleMissingError: the workload has to be pickled, which needs cloudpickle.
            WorkloadError: something in it cannot be pickled.
        """
        return self._reference or _pickled(self)

    @property
    def has_batch_kinds(self) -> bool:
        """Whether `make_batch` takes a keyword `kind`, for typical or worst-case batches."""
        return keyword(self.make_batch, "kind") is not None

    @property
    def has_batch_layouts(self) -> bool:
        """Whether `make_batch` takes a keyword `layout`, such as `packed` sequences."""
        return keyword(self.make_batch, "layout") is not None


def resolve(ref: WorkloadRef) -> Workload:
    """Loads the workload that a reference names; called in the process that will run it.

    Raises:
        SourceChangedError: the source or the pickle differs from the reference's digest.
        WorkloadError: the user's module fails, or holds no workload under that name.
    """
    match ref.kind:
        case "builtin":
            workload = _builtin_workload(ref)
        case "library":
            workload = _library_workload(ref)
        case "pickle":
            workload = _as_workload(_unpickled(ref), ref)
        case "import" | "file":
            workload = _as_workload(load_attribute(ref), ref)
        case _:
            raise WorkloadError(
                f"the autofit of this worker knows no reference of kind {ref.kind!r}: install the release "
                "that started the search"
            )
    copy = dataclasses.replace(workload, name=workload.name or ref.name)  # the user's own stays unchanged
    object.__setattr__(copy, "_reference", ref)
    return copy


def _builtin_workload(ref: WorkloadRef) -> Workload:
    builtin = BUILTINS.get(ref.target)
    if builtin is None:
        raise UnknownWorkloadError(
            f"the autofit of this worker knows no workload {ref.target!r}: install the release that started "
            "the search"
        )
    workload: Workload = getattr(importlib.import_module(builtin.module), builtin.attribute)
    return workload


def _library_workload(ref: WorkloadRef) -> Workload:
    library = library_of(ref.target)
    if library is None:
        raise UnknownWorkloadError(
            f"the autofit of this worker knows no library for {ref.target!r}: install the release that "
            "started the search"
        )
    workload: Workload = importlib.import_module(library.module).load(ref)
    return workload


def _as_workload(found: Any, ref: WorkloadRef) -> Workload:
    """Workload for an object that a user's reference names: a workload, a function, or a module."""
    from torch import nn

    if isinstance(found, nn.Module):
        raise WorkloadError(
            f"{ref.name} is a model that is already built: name its class, or a function that builds it"
        )
    if callable(found):
        if ref.input_shape is not None:
            return _module_workload(found, ref.name, ref.input_shape, ref.num_classes)
        if isinstance(found, type) and issubclass(found, nn.Module):
            raise _needs_input(ref)
        with user_code(f"calling {ref.name}()"):
            found = found()
        if isinstance(found, nn.Module):
            raise _needs_input(ref)
    if not isinstance(found, Workload):
        raise WorkloadError(
            f"{ref.name} gives {type(found).__name__}: name a Workload or a function that returns one"
        )
    if ref.input_shape is not None:
        raise WorkloadError(
            f"{ref.name} is a Workload, which makes its own batches: leave out --input and --classes"
        )
    return found


def _needs_input(ref: WorkloadRef) -> WorkloadError:
    return WorkloadError(
        f"{ref.name} is an nn.Module, which does not tell the shape of its input: add that of one sample, "
        "such as --input 3x224x224, and --classes 1000 if it classifies"
    )


def _module_workload(
    factory: Callable[[], Any], name: str, input_shape: tuple[int, ...], num_classes: int | None
) -> Workload:
    return Workload(
        build_model=functools.partial(_build_module, factory, name),
        make_batch=functools.partial(_random_batch, input_shape=input_shape, num_classes=num_classes),
        loss=_mean_of_output if num_classes is None else _cross_entropy,
    )


def _build_module(factory: Callable[[], Any], name: str) -> torch.nn.Module:
    from torch import nn

    model = factory()
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"{name} returned {type(model).__name__}, but with --input it has to return an nn.Module: "
            "leave out --input and --classes if it returns a Workload"
        )
    return model


def _random_batch(
    batch_size: int, device: torch.device, *, input_shape: tuple[int, ...], num_classes: int | None
) -> tuple[torch.Tensor, ...]:
    import torch

    samples = torch.randn(batch_size, *input_shape, device=device)
    if num_classes is None:
        return (samples,)
    return samples, torch.randint(num_classes, (batch_size,), device=device)


def _cross_entropy(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    from torch.nn import functional

    samples, labels = batch
    return functional.cross_entropy(_output(model, samples), labels)


def _mean_of_output(model: torch.nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
    return _output(model, *batch).mean()


def _output(model: torch.nn.Module, samples: torch.Tensor) -> torch.Tensor:
    import torch

    output = model(samples)
    if not isinstance(output, torch.Tensor):
        raise InvalidLossError(
            f"{type(model).__name__} returns {type(output).__name__} instead of a tensor: "
            "write a Workload whose loss takes that"
        )
    return output


def _pickled(workload: Workload) -> WorkloadRef:
    """Reference to a workload by its pickle, for workloads that no file or name stands for."""
    cloudpickle = _cloudpickle()
    with ExitStack() as stack:
        # A worker could not import the modules that were made from files in this process.
        for name, module in list(sys.modules.items()):
            if name.startswith(FILE_MODULE_PREFIX):
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            payload = cloudpickle.dumps(workload)
        except Exception as error:
            raise WorkloadError(
                f"the workload cannot be sent to a worker ({type(error).__name__}: {error}): "
                "build what it needs inside its functions, or define it in a file and give file.py:name"
            ) from error
    return WorkloadRef(
        kind="pickle",
        target=workload.name or getattr(workload.build_model, "__name__", "workload"),
        source_sha256=hashlib.sha256(payload).hexdigest(),
        search_path=_import_folders(),
        payload_base64=base64.b64encode(payload).decode("ascii"),
    )


def _import_folders() -> tuple[str, ...]:
    """Folders from which a pickle's modules are imported here, but for those that every Python has.

    They are those of the main file, the current one and what the program added to `sys.path`, as a notebook
    does for the code beside it.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    installed = {Path(root) for root in (sys.prefix, sys.base_prefix, site.getuserbase())}
    added = (Path(folder) for folder in sys.path if folder)
    folders = [
        *([Path(main).resolve().parent] if main else []),
        Path.cwd(),
        *(path.absolute() for path in added if path.is_dir() and installed.isdisjoint(path.parents)),
    ]
    return tuple(dict.fromkeys(map(str, folders)))


def _unpickled(ref: WorkloadRef) -> Any:
    payload = base64.b64decode(ref.payload_base64 or "")
    if hashlib.sha256(payload).hexdigest() != ref.source_sha256:
        raise SourceChangedError(f"the bytes of {ref.name} do not match their digest: send them again")
    _cloudpickle()  # raises an error that names cloudpickle, where unpickling would name one of its internals
    append_to_import_path(ref.search_path)
    with user_code(f"unpickling {ref.name}"):
        return pickle.loads(payload)  # noqa: S301 - the user's own code, as any workload


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise CloudpickleMissingError(
            "a workload that is not defined in a file (in a notebook, or a changed copy) needs cloudpickle, "
            "here and on the workers: pip install cloudpickle, or define it in a file and give "
            "path/file.py:name"
        ) from error
    return cloudpickle


def check_batch(batch: object, batch_size: int) -> str | None:
    """Checks that a tensor of a batch has the batch size as one of its dimensions.

    Returns:
        A note for the user if a batch of 1 has no such dimension; else None.

    Raises:
        InvalidBatchError: no tensor has such a dimension, so every size would seem to fit; a batch of 1,
            which may be a whole graph, is invalid only without any tensor.
    """
    shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
    if any(batch_size in shape for shape in shapes):
        return None
    if not shapes:
        raise InvalidBatchError(
            f"make_batch returned {type(batch).__name__} without any tensor: return the input of a step"
        )
    shown = ", ".join(map(str, shapes[:4])) + (", …" if len(shapes) > 4 else "")
    if batch_size == 1:
        return f"make_batch makes {shown} where 1 sample is asked for: all of it counts as one, as a graph"
    raise InvalidBatchError(
        f"make_batch ignores the batch size: asked for {batch_size}, got shapes {shown}; "
        "use its first argument as a dimension, or ask for a batch of 1 where that is one sample, as a whole "
        "graph is (--batch-size 1, or --max-batch 1 of tune)"
    )


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Yields the tensors in a batch or in a model's output, at any depth."""
    return _tensors(value, {})


def _tensors(value: object, seen: dict[int, object]) -> Iterator[torch.Tensor]:
    """Yields the tensors in a value, in containers, mappings and attributes of objects."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, as its id could otherwise be reused
    if isinstance(value, Mapping):
        parts: Iterable[object] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value)]
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") and not callable(value) else ()
    for part in parts:
        yield from _tensors(part, seen)


def check_loss(loss: object) -> None:
    """Checks that a training step's loss can be differentiated.

    Raises:
        InvalidLossError: the loss is not a tensor, has more than one element, or depends on no parameter.
    """
    import torch

    if isinstance(loss, int | float):
        raise InvalidLossError(
            "the loss must be a scalar tensor, got a number: return the tensor, without .item() or float()"
        )
    if not isinstance(loss, torch.Tensor):
        raise InvalidLossError(
            f"the loss must be a scalar tensor, got {type(loss).__name__}: return the loss itself"
        )
    if loss.numel() != 1:
        raise InvalidLossError(
            f"the loss must be a scalar, got shape {tuple(loss.shape)}: take its mean or its sum"
        )
    if not loss.requires_grad:
        raise InvalidLossError(
            "the loss depends on no parameter that is trained: compute it from the model's output with "
            "gradients enabled, or use the mode infer"
        )
