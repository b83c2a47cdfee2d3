"""Pickles a live model without the values of its tensors, so that another process builds it anew."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.workload.libraries.importing import without_missing_operators

# Classes that wrap a model, by name: some are in modules whose import would load a library.
_SHARDED = {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "DeepSpeedEngine"}
_COMPILED = "OptimizedModule"
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def require_whole(model: nn.Module) -> None:
    """Raises `UnsupportedError` if a model is compiled, or spread over several ranks, already."""
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"{type(model).__name__} is no model: give the nn.Module that is trained")
    classes = {type(module).__name__ for module in model.modules()}
    if _COMPILED in classes:
        raise UnsupportedError(
            "the model is compiled already, which cannot be sent to another process: ask for its batch size "
            "before torch.compile"
        )
    sharded = (classes & _SHARDED) | {
        type(tensor).__name__ for tensor in model.parameters() if type(tensor.data).__name__ == "DTensor"
    }
    if sharded:
        raise UnsupportedError(
            f"the model is spread over ranks already ({', '.join(sorted(sharded))}): ask for its batch size "
            "before it is wrapped"
        )


class EmptyModel:
    """Function that builds a live model anew in another process, with tensors that have no values.

    Args:
        model: the live model, which is only read.
        left_out: classes of objects that the model refers to and that do not belong to it, such as its
            trainer: None takes their place.
        prepare: called with the model that was built; returns the model to train.

    Raises:
        UnsupportedError: the model is compiled or sharded, or something in it cannot be pickled.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        left_out: tuple[type, ...] = (),
        prepare: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        require_whole(model)
        self._prepare = prepare
        self._pickled = pickled_with(model, lambda found: _in_place_of(found, left_out))

    def __call__(self) -> nn.Module:
        model: nn.Module = unpickled(self._pickled)
        return model if self._prepare is None else self._prepare(model)


def unpickled(pickled: bytes) -> Any:
    """Object of a pickle that this package made; libraries whose operators PyTorch lacks may be imported."""
    with without_missing_operators():
        return pickle.loads(pickled)  # noqa: S301


def pickled_with(value: object, replace: Callable[[Any], Any]) -> bytes:
    """Pickle of an object in which some objects are replaced.

    Args:
        replace: returns how to make what takes an object's place, as `__reduce__` does; NotImplemented to
            keep the object.

    Raises:
        UnsupportedError: something in the object cannot be pickled, or cloudpickle is missing.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "a live model needs cloudpickle to be sent to another process: pip install cloudpickle"
        ) from error

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, found: Any) -> Any:
            made = replace(found)
            return super().reducer_override(found) if made is NotImplemented else made

    written = io.BytesIO()
    try:
        Pickler(written).dump(value)
    except UnsupportedError:
        raise
    except Exception as error:  # a user's objects raise whatever they like
        raise UnsupportedError(
            f"{type(value).__name__} cannot be sent to another process ({type(error).__name__}: {error})"
        ) from error
    return written.getvalue()


def _in_place_of(found: Any, left_out: tuple[type, ...]) -> Any:
    if left_out and isinstance(found, left_out):
        return _nothing, ()
    if not isinstance(found, torch.Tensor):
        return NotImplemented
    if type(found) not in _PLAIN:
        raise UnsupportedError(
            f"the model has tensors of the class {type(found).__name__}, which only its library can build"
        )
    if found.layout is not torch.strided:
        raise UnsupportedError("the model has sparse tensors, which cannot be built without their values")
    is_parameter = isinstance(found, nn.Parameter)
    return _empty, (tuple(found.shape), found.stride(), found.dtype, found.requires_grad, is_parameter)


def _nothing() -> None:
    return None


def _empty(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    """Makes a tensor on the CPU; small values take the place of its own, so that steps stay finite."""
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if dtype.is_floating_point:
        tensor.fill_(0.01)
    else:
        tensor.zero_()
    if is_parameter:
        return nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor
