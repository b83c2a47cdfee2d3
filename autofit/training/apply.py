"""Functions that apply the knobs that `autofit tune` recommends to the user's own training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.predict.convolutions.plan import ConvPlan
from autofit.settings.resolve import resolve_settings
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.errors import DeviceError, InapplicableError, UnsupportedError
from autofit_workers.spec.knobs import KNOBS, Knobs


@contextmanager
def apply_conv_algo(
    model: Any, conv_algo: str, *, plan: ConvPlan | str | Path | None = None
) -> Iterator[Mapping[str, str]]:
    """Context manager that computes a model's convolutions with an algorithm, forward and backward.

    A rewrite (`im2col`, `fft`, `chunked:8`, …) changes this model only, in this thread; the backward pass
    of layers that ran in the block uses it too, even after the block. A backend's policy (`native`,
    `cudnn-benchmark`, …) is switched for the whole process. The block's end restores all of this.

        >>> with autofit.apply_conv_algo(model, "fft"):
        ...     loss = criterion(model(images), labels)
        >>> loss.backward()

    Args:
        model: `nn.Module` on the device that it will run on.
        conv_algo: name of an algorithm that `autofit conv-algos` lists.
        plan: for `mixed`, the algorithm of each layer: `TuneResult.conv_plan`, or the file that
            `autofit tune --conv-plan` wrote.

    Returns:
        A context manager. `with … as left` gives a mapping from layer names to reasons: the layers that
        the algorithm cannot compute and leaves to the backend. It fills as layers run.

    Raises:
        StorageError: the plan cannot be read.
        UsageError: the algorithm or the plan does not exist, it does not apply to the model's device, or
            it applies to none of the model's convolutions; the last is raised by the first forward pass.
    """
    from autofit_workers.apply.own_model import algorithm_in_use  # imports torch

    algorithm = conv.find(_known(conv_algo))
    try:
        with algorithm_in_use(model, algorithm, plan=_assignment(conv_algo, plan)) as left:
            yield left
    except (UnsupportedError, InapplicableError) as error:
        raise UsageError(str(error)) from error


def checkpoint_blocks(model: Any, checkpointing: str = "blocks") -> None:
    """Applies activation checkpointing to the repeated blocks of a model, in place.

    Repeated blocks are modules with children that follow one of the same class in an `nn.Sequential` or an
    `nn.ModuleList`. Of their activations only some are kept for the backward pass, in which the blocks run
    again. Random numbers are the same both times; a batch norm inside a block updates its running statistics
    twice.

    Args:
        model: `nn.Module`, which is changed.
        checkpointing: `blocks` keeps only the inputs of each block, `blocks-reentrant` with PyTorch's
            `use_reentrant=True`; `every:4` takes four blocks in a row as one, and keeps only the inputs of
            the first; `selective` also keeps the outputs of matrix products, convolutions and attention;
            `selective:50` at most 50 percent of those bytes.

    Raises:
        UsageError: the model has no repeated blocks, or `checkpointing` is none of these.
    """
    from autofit_workers.apply.checkpointing import checkpoint_blocks as apply  # imports torch

    try:
        apply(model, checkpointing)
    except (InapplicableError, ValueError) as error:
        raise UsageError(str(error)) from error


def hidden_weights(model: Any) -> list[Any]:
    """Hidden weight matrices of a model, for which the optimizers `muon` and `galore-adamw` are made.

    These are all weight matrices except those of embeddings and of the layer that makes the output.

        >>> hidden = autofit.hidden_weights(model)

    Args:
        model: `nn.Module`.
    """
    from autofit_workers.workload.hidden_weights import hidden_weights as find  # imports torch

    return [*find(model)]


def adapt(model: Any, adapter: str | None = None, *, base: str | None = None, precision: str = "fp32") -> Any:
    """Adds an adapter to a model and converts its base weights, as `--adapter` and `--base` do.

        >>> model = autofit.adapt(model, "lora:r=16,targets=all-linear", base="nf4", precision="amp-bf16")

    Args:
        model: `nn.Module` on the CPU; its layers are replaced in place. Quantization happens
            when the model moves to its GPU.
        adapter: `METHOD:KEY=VALUE,…` of the library peft, or the path of an `adapter_config.json`.
        base: `fp32`, `fp16`, `bf16`, or by bitsandbytes `nf4`, `nf4-dq`, `fp4`, `int8`, by torchao
            `int8-torchao`, `fp8-torchao`, `nf4-torchao`.
        precision: data type of the training's computation, one of the values of `--precision`; `bf16` keeps
            adapters in bfloat16 too.

    Returns:
        Model to train: with an adapter, peft's model around the given one.

    Raises:
        UsageError: there is no such value, peft refuses the adapter for this model, or a library is missing.
    """
    from autofit_workers.apply.base import with_base  # imports torch
    from autofit_workers.apply.setting import adapted_model

    try:
        adapter = KNOBS["adapter"].from_user(adapter)
        knobs = Knobs(adapter=adapter, base=base, precision=precision)
        return adapted_model(with_base(model, knobs), knobs)
    except (InapplicableError, DeviceError, ValueError) as error:
        raise UsageError(str(error)) from error


def set_loss(model: Any, loss: str) -> None:
    """Changes a transformers causal language model to compute its loss without holding all logits at once.

        >>> autofit.set_loss(model, "chunked:8")
        >>> model(input_ids=tokens, labels=tokens).loss.backward()

    Args:
        model: model, which is changed: its forward pass requires labels, and returns hidden states in
            place of logits.
        loss: way to compute the loss, one of the values of `--loss`, such as `chunked:8`.

    Raises:
        UsageError: `model` is not such a model, its logits are not just the product of hidden states and head
            weights, or the library of the loss is not installed.
    """
    from autofit_workers.apply.loss import set_loss as apply  # imports torch

    try:
        apply(model, loss)
    except (InapplicableError, UnsupportedError, DeviceError, ValueError) as error:
        raise UsageError(str(error)) from error


def _assignment(conv_algo: str, plan: ConvPlan | str | Path | None) -> tuple[tuple[str, str], ...] | None:
    if (plan is None) == (conv_algo == "mixed"):
        raise UsageError(
            "mixed needs a plan: give plan=result.conv_plan, or a file that --conv-plan wrote"
            if plan is None
            else f"plan= is for mixed, not for {conv_algo}: leave one of them out"
        )
    if plan is None:
        return None
    return (plan if isinstance(plan, ConvPlan) else ConvPlan.load(Path(plan))).assignment


def _known(conv_algo: str) -> str:
    settings = resolve_settings({"model": "model", "conv_algo": conv_algo}, {}, None)
    return settings.one_conv_algo("a model")
