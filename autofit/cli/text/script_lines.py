"""What to write into a training script to run with a knob setting: only what is not the default."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.result import Best
from workers import conv
from workers.knobs import KNOBS, Knobs
from workers.protocol import ScriptCall

_AUTOCAST_TYPES = {"amp-fp16": "float16", "amp-bf16": "bfloat16"}
_OPTIMIZERS = {
    "sgd": ("SGD", ""),
    "sgd-momentum": ("SGD", ", momentum=0.9"),
    "adam": ("Adam", ""),
    "adamw": ("AdamW", ""),
    "rmsprop": ("RMSprop", ""),
    "adagrad": ("Adagrad", ""),
    "adamw8bit": ("AdamW8bit", ""),
}
_IMPLEMENTATIONS = {
    "default": "",
    "foreach": ", foreach=True",
    "fused": ", fused=True",
    "loop": ", foreach=False",
}


def call_lines(settings: TuneSettings, best: Best) -> Iterator[str]:
    """How a script is called with its answer, and what to set in it first."""
    assert settings.script is not None
    for line in (*_conv_lines(best.knobs, "cuda"), *_lines_of_the_model(best.knobs)):
        yield f"# in it: {line}"
    call = ScriptCall(arguments=settings.script_arguments, batch_argument=settings.batch_argument)
    before = [] if settings.batch_variable is None else [f"{settings.batch_variable}={best.batch_size}"]
    if settings.batch_name is not None:
        yield f"# in it: {settings.batch_name} = {best.batch_size}"
    elif call.sets_loader and not before:
        yield f"# in it: batch_size={best.batch_size} of its DataLoader"
    words = ["python", settings.script, *call.arguments_at(best.batch_size)]
    yield " ".join((*before, shlex.join(words)))


def script_lines(
    knobs: Knobs, *, batch_size: int, device_kind: str, training: bool, num_ranks: int = 1
) -> Iterator[str]:
    """Python lines in the order in which a script needs them.

    Args:
        device_kind: `cuda` or `cpu`; TF32 and the convolution policies are CUDA's.
        num_ranks: the processes that train together, one on each GPU.
    """
    yield from _lines_of("allocator", knobs)  # before PyTorch is imported
    yield from _conv_lines(knobs, device_kind)
    for name in KNOBS:
        if name != "allocator":
            yield from _lines_of(name, knobs)
    sampler = ", sampler=torch.utils.data.distributed.DistributedSampler(dataset)" if num_ranks > 1 else ""
    yield f"loader = torch.utils.data.DataLoader(dataset, batch_size={batch_size}{sampler})"
    yield from _lines_of_the_model(knobs)
    if training and knobs.checkpointing != "none":
        how = "" if knobs.checkpointing == "blocks" else f', "{knobs.checkpointing}"'
        yield f"autofit.checkpoint_blocks(model{how})  # repeated blocks run again in backward"
    conversions = _conversions(knobs)
    if conversions:
        yield f"model = model.to({conversions})  # before it is moved to the GPU"
    if knobs.compile:
        yield "model = torch.compile(model)  # once it is on its device"
    if num_ranks > 1:
        yield f"model = torch.nn.parallel.DistributedDataParallel(model)  # on its GPU, of {num_ranks} ranks"
    if training:
        yield from _optimizer_lines(knobs)
    if training and knobs.precision == "amp-fp16":
        yield f'scaler = torch.amp.GradScaler("{device_kind}")'
    if conversions:
        yield f"inputs = inputs.to({conversions})"
    if training:
        yield from _training_lines(knobs, device_kind, knobs.num_batches(batch_size))
    elif dtype := _AUTOCAST_TYPES.get(knobs.precision):
        yield _autocast(device_kind, dtype)
        yield "    output = ..."


def _conv_lines(knobs: Knobs, device_kind: str) -> tuple[str, ...]:
    is_default = knobs.conv_algo in (Knobs().conv_algo, "onednn")  # on a GPU, on the CPU
    return () if is_default else conv.find(knobs.conv_algo).lines_on(device_kind)


def _lines_of(name: str, knobs: Knobs) -> tuple[str, ...]:
    lines = KNOBS[name].script_lines
    return () if lines is None else lines(getattr(knobs, name))


def _lines_of_the_model(knobs: Knobs) -> Iterator[str]:
    for knob in KNOBS.values():
        if knob.model_lines is not None:
            yield from knob.model_lines(getattr(knobs, knob.name))


def _conversions(knobs: Knobs) -> str:
    parts = []
    if knobs.precision == "bf16":
        parts.append("dtype=torch.bfloat16")
    if knobs.memory_format == "channels_last":
        parts.append("memory_format=torch.channels_last")
    return ", ".join(parts)


def _optimizer_lines(knobs: Knobs) -> Iterator[str]:
    implementation = _IMPLEMENTATIONS[knobs.optimizer_impl]
    if knobs.optimizer is not None:
        name, options = _OPTIMIZERS[knobs.optimizer]
        package = "bitsandbytes" if name.endswith("8bit") else "torch"
        yield f"optimizer = {package}.optim.{name}(model.parameters(){options}{implementation})"
    elif implementation:
        yield f"optimizer = ...(model.parameters(){implementation})"


def _training_lines(knobs: Knobs, device_kind: str, num_batches: int) -> Iterator[str]:
    """Those of a step, as far as its precision or its being made of several batches changes them."""
    dtype = _AUTOCAST_TYPES.get(knobs.precision)
    accumulates, scales = num_batches > 1, dtype == "float16"
    zero = "optimizer.zero_grad()" if knobs.set_to_none else "optimizer.zero_grad(set_to_none=False)"
    if not (accumulates or knobs.set_to_none):
        yield zero
    if dtype is not None:
        yield _autocast(device_kind, dtype)
        share = f" / {num_batches}" if accumulates else ""
        yield f"    loss = ...{share}  # forward pass and loss; backward outside"
    elif accumulates:
        yield f"loss = loss / {num_batches}  # the optimizer steps after {num_batches} batches"
    if scales:
        yield "scaler.scale(loss).backward()"
    elif accumulates:
        yield "loss.backward()"
    step = ["scaler.step(optimizer)", "scaler.update()"] if scales else ["optimizer.step()"]
    if accumulates:
        yield f"if (number + 1) % {num_batches} == 0:  # of the batches, counted from 0"
        yield from (f"    {line}" for line in (*step, zero))
    elif scales:
        yield from step


def _autocast(device_kind: str, dtype: str) -> str:
    return f'with torch.autocast("{device_kind}", dtype=torch.{dtype}):'
