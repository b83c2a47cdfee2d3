"""Finds the weights of a model's hidden layers, which optimizers such as Muon treat differently."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn


def hidden_weights(model: nn.Module) -> list[nn.Parameter]:
    """Weight matrices of a model except those of embeddings and of the output layer.

    The output layer is the one that `get_output_embeddings` of a transformers model returns; else the last
    module with a matrix, if no other matrix has its shape, as in repeated blocks. Muon's author
    leaves output layer and embeddings to AdamW (github.com/KellerJordan/Muon).
    """
    matrices = {id(parameter): parameter for parameter in model.parameters() if parameter.dim() == 2}
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            _leave_out(module, matrices)
    output_layer = _named_output_layer(model) or _last_of_its_shape(model, matrices.values())
    if output_layer is not None:
        _leave_out(output_layer, matrices)
    return list(matrices.values())


def _leave_out(module: nn.Module, matrices: dict[int, nn.Parameter]) -> None:
    for parameter in module.parameters(recurse=False):
        matrices.pop(id(parameter), None)


def _named_output_layer(model: nn.Module) -> nn.Module | None:
    named = getattr(model, "get_output_embeddings", None)
    layer = named() if callable(named) else None
    return layer if isinstance(layer, nn.Module) else None


def _last_of_its_shape(model: nn.Module, matrices: Collection[nn.Parameter]) -> nn.Module | None:
    """Module with the model's last weight matrix, if no other matrix has its shape; else None.

    Args:
        model: the model.
        matrices: its weight matrices.
    """
    last = next(reversed([*matrices]), None)
    if last is None or sum(matrix.shape == last.shape for matrix in matrices) > 1:
        return None
    return next(
        module for module in model.modules() if any(each is last for each in module.parameters(recurse=False))
    )
