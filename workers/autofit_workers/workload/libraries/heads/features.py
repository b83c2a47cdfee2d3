"""Counts the tokens or frames that a model class makes of an image or a sound.

The model is built and run on the meta device, where tensors have shapes and no values. Small integer
tensors, such as the sizes of images, stay on the CPU, since the classes read their values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from autofit_workers.pytorch.dispatch import TorchDispatchMode
from autofit_workers.pytorch.pytree import tree_leaves, tree_map_only
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.shown import brief_error
from autofit_workers.workload.libraries.heads.building import build
from autofit_workers.workload.libraries.heads.task import Batch, Head

aten: Any = torch.ops.aten

_META, _CPU = torch.device("meta"), torch.device("cpu")
# Results of comparisons of real numbers, all of which count as different.
_COMPARED = {aten.eq: False, aten.ne: True}


def rows_of(head: Head, method: str, inputs: Batch) -> int:
    """Number of features into which a model turns one image or sound; each takes a token's position.

    Args:
        head: model class with its configuration.
        method: name of the class's method that computes the features, such as `get_image_features`.
        inputs: the method's arguments for one sample.

    Raises:
        UnsupportedError: the class has no such method, or does not take the inputs.
    """
    model = _built(head)
    for part in (getattr(model, "model", None), model):
        if (make := getattr(part, method, None)) is not None:
            return _num_rows(_of(_asked(head, make, inputs)))
    masks = [value for name, value in inputs.items() if name.endswith("_mask")]
    if masks and (lengths_of := _lengths_of_frames(model)) is not None:
        lengths: Any = lengths_of(masks[0].sum(-1))
        return int((lengths[-1] if isinstance(lengths, tuple) else lengths).sum())
    raise UnsupportedError(
        f"{head.wanted} does not tell how many tokens stand for an image or a sound ({method}): write a "
        "Workload with its own batches, and give path/file.py:name"
    )


def _lengths_of_frames(model: nn.Module) -> Callable[..., Any] | None:
    """Method of a model's audio part that computes output lengths from input lengths; None if missing."""
    told = (getattr(part, "_get_feat_extract_output_lengths", None) for part in model.modules())
    return next(filter(None, told), None)


def frames_of(head: Head, inputs: Batch) -> int:
    """Number of frames in the output of a model class for the inputs of one sample."""
    model = _built(head)
    logits: torch.Tensor = _asked(head, model, inputs).logits
    return logits.shape[1]


def _built(head: Head) -> Any:
    """Model of a head on the meta device, in eval mode, so that nothing is random."""
    with torch.device(_META):
        return build(head).eval()


def _asked(head: Head, make: Callable[..., Any], inputs: Batch) -> Any:
    """Result of a method of a head's class for those inputs that it takes; raises if it needs others."""
    function = make.forward if isinstance(make, nn.Module) else make
    named = inspect.signature(function).parameters
    taken = {name: value for name, value in inputs.items() if name in named}
    missing = [
        each.name
        for each in named.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in taken
    ]
    if missing:
        raise UnsupportedError(
            f"{head.wanted} needs {' and '.join(missing)}, and nothing here says what that is: write a "
            "Workload with its own batches, and give path/file.py:name"
        )
    try:
        with _SizesOnCpu(), torch.no_grad():  # type: ignore[no-untyped-call]
            return make(**taken)
    except Exception as error:
        raise UnsupportedError(
            f"{head.wanted} does not take the images or sounds that are made for it here "
            f"({brief_error(error)}): write a Workload with its own batches, and give path/file.py:name"
        ) from error


class _SizesOnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode for meta tensors that keeps integer tensors and masks on the CPU, with their values.

    Model classes read such values, for example image sizes. Real numbers have no values on `meta`, so
    comparisons of them are false: classes leave out images of zeros and masked frames, which batches of this
    package do not contain.
    """

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_of_meta = any(tensor.is_meta for tensor in tensors)
        if is_of_meta and "device" in kwargs:
            kwargs["device"] = _META
        elif kwargs.get("device") == _META and _is_whole(func, args, kwargs):
            kwargs["device"] = _CPU
        if not is_of_meta:
            return func(*args, **kwargs)
        if func.overloadpacket in _COMPARED:
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))  # type: ignore[no-untyped-call]
            return torch.full(shape, _COMPARED[func.overloadpacket])
        if func is aten.index.Tensor:  # indices may lie on the CPU
            return func(*args)
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(_META), (args, kwargs))
        return func(*args, **kwargs)


def _is_whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator that makes a tensor from no other, such as `arange`, returns integers or a mask."""
    dtype = kwargs.get("dtype")
    if dtype is None:
        return func.overloadpacket is aten.arange and all(isinstance(each, int) for each in args)
    return not dtype.is_floating_point and not dtype.is_complex


def _of(made: Any) -> Any:
    """Tensor or tensors of features in the result of a model's method, such as `get_image_features`."""
    for name in ("pooler_output", "last_hidden_state"):
        if (features := getattr(made, name, None)) is not None:
            return features
    return made


def _num_rows(features: Any) -> int:
    """Number of rows of features in one tensor, or in all tensors of a (nested) list."""
    if isinstance(features, torch.Tensor):
        return features.shape[:-1].numel()
    return sum(map(_num_rows, features))
