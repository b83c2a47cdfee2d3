"""The options that commands share, and what the shell completes them with.

Values stay the text that was typed: `resolve_settings` converts them, so that a bad one reads the
same whether it comes from the command line, the environment or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from autofit.hardware.gpus import catalogue
from autofit.settings.values import SEARCHABLE
from workers import conv
from workers.protocol import (
    ALLOCATOR_NAMES,
    CHECKPOINTING_NAMES,
    MEMORY_FORMATS,
    MODES,
    OPTIMIZER_IMPLS,
    OPTIMIZERS,
    PRECISIONS,
)
from workers.workload.models import BUILTINS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def setting(
    name: str,
    help_text: str,
    *,
    metavar: str | None = None,
    choices: Iterable[str] = (),
    complete: _Completer | None = None,
) -> Decorator:
    """An option whose text goes to `resolve_settings` as it is; None when it is not given."""
    values = tuple(choices)
    return click.option(
        f"--{name}",
        metavar=metavar or "|".join(values),
        help=help_text,
        shell_complete=complete or (_one_of(values) if values else None),
    )


def combined(*decorators: Decorator) -> Decorator:
    """Applies options so that the help lists them in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _one_of(values: Iterable[str]) -> _Completer:
    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]

    return complete


def complete_model(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Built-in names; where none begins like this, the shell's own completion of files."""
    names = [
        CompletionItem(builtin.name, help=builtin.description)
        for builtin in BUILTINS.values()
        if builtin.name.startswith(incomplete)
    ]
    return names or [CompletionItem(incomplete, type="file")]


def _complete_file(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def gpu_completions(incomplete: str) -> list[CompletionItem]:
    """The catalogue's cards that begin like this."""
    return [
        CompletionItem(gpu.key, help=gpu.name)
        for gpu in catalogue().values()
        if gpu.key.startswith(incomplete)
    ]


def _complete_gpu(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return gpu_completions(incomplete)


def _complete_conv_algo(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The last name of a list; `all` stands alone."""
    before, comma, last = incomplete.rpartition(",")
    known = [algorithm.name for algorithm in conv.offered()]
    names = known if comma else ["all", *known]
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]


SAMPLE = combined(
    setting("input", "Shape of one sample, such as 3x224x224, where MODEL is an nn.Module.", metavar="SHAPE"),
    setting("classes", "Number of classes of the labels that go with --input.", metavar="N"),
    setting("seq-len", "Tokens a sample, of a language model such as hf:gpt2.", metavar="N"),
)

MODEL = combined(
    setting(
        "model",
        "A built-in's name (see `autofit models`), torchvision:NAME, timm:NAME, hf:NAME-or-config, "
        "package.module:attribute or path/file.py:attribute.",
        metavar="MODEL",
        complete=complete_model,
    ),
    SAMPLE,
)

SCRIPT = combined(
    click.option(
        "--script",
        metavar="FILE",
        help="A training script, run as it is until some optimizer steps are done, instead of --model.",
        shell_complete=_complete_file,
    ),
    click.option("--script-arg", multiple=True, metavar="ARG", help="An argument of its; may be repeated."),
    setting(
        "batch-arg",
        "The script's argument that takes the batch size, such as --batch-size; joined if it ends in =.",
        metavar="ARG",
    ),
    setting("batch-env", "The environment variable that takes it, instead.", metavar="NAME"),
)

GPU = setting(
    "gpu",
    "The card, such as rtx-3090; `autofit gpus` lists them.",
    metavar="CARD",
    complete=_complete_gpu,
)

GPU_MEM = setting(
    "gpu-mem",
    "The device's total memory: 16G is 16 × 1024³ bytes, 16GB is 16 × 1000³.",
    metavar="SIZE",
)

KEPT_FREE = combined(
    setting("margin", "Share of the device's memory to keep free.  [default: 3%]", metavar="PERCENT"),
    setting("reserve", "What other processes on the device are left.", metavar="SIZE"),
)

BATCH_SIZE = click.option(
    "--batch-size", type=click.IntRange(min=1), required=True, metavar="N", help="Samples a step."
)

CONV_ALGOS_OPTION = setting(
    "conv-algo",
    "Convolution algorithms to choose from; `autofit conv-algos` lists them.  "
    "[default: what the device's backend has]",
    metavar="A,B,…|all",
    complete=_complete_conv_algo,
)

CONV_ALGO = setting(
    "conv-algo",
    "Convolution algorithm; `autofit conv-algos` lists them.  [default: cudnn]",
    metavar="A",
    complete=_complete_conv_algo,
)


def _complete_search(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The knob, then one value after another."""
    knob, equals, values = incomplete.partition("=")
    if not equals:
        return [CompletionItem(f"{name}=") for name in SEARCHABLE if name.startswith(knob)]
    before, comma, last = values.rpartition(",")
    known = _SEARCHED_VALUES.get(knob, ())
    return [CompletionItem(f"{knob}={before}{comma}{name}") for name in known if name.startswith(last)]


_SEARCHED_VALUES: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "memory-format": MEMORY_FORMATS,
    "checkpointing": CHECKPOINTING_NAMES,
    "allocator": ALLOCATOR_NAMES,
    "optimizer": OPTIMIZERS,
    "optimizer-impl": OPTIMIZER_IMPLS,
    "set-to-none": ("true", "false"),
    "compile": ("true", "false"),
}

SEARCH_KNOBS = click.option(
    "--search",
    multiple=True,
    metavar="KNOB=A,B,…",
    help=f"Choose a knob too, one of {', '.join(SEARCHABLE)}; again for another: every combination is a "
    "setting, those that cannot win are pruned.",
    callback=lambda _ctx, _param, values: ";".join(values) if values else None,
    shell_complete=_complete_search,
)

KNOBS = combined(
    setting(
        "precision",
        "fp32 is PyTorch's, with TF32 in convolutions; ieee-fp32 has it nowhere, tf32 in matrix products "
        "too; amp-fp16 is with a GradScaler; bf16 converts model and inputs.  [default: fp32]",
        choices=PRECISIONS,
    ),
    setting("memory-format", "Layout of weights and inputs.  [default: contiguous]", choices=MEMORY_FORMATS),
    setting("optimizer", "Instead of the workload's own.", metavar="NAME", choices=OPTIMIZERS),
    setting(
        "optimizer-impl",
        "How a named optimizer is computed; default is PyTorch's choice, foreach on a GPU.",
        choices=OPTIMIZER_IMPLS,
    ),
    setting(
        "set-to-none", "Whether zero_grad drops the gradients.  [default: true]", choices=("true", "false")
    ),
    setting(
        "checkpointing",
        "blocks keeps of every repeated block its inputs alone, and runs it again in backward; every:N does "
        "so with each N blocks as with one; selective also keeps what products, convolutions and attention "
        "put out, selective:N at most N percent of that.  [default: none]",
        metavar="|".join(CHECKPOINTING_NAMES),
        choices=("none", "blocks", "every:2", "selective", "selective:50"),
    ),
    setting(
        "allocator",
        "PyTorch's allocator of CUDA memory: with expandable segments, or blocks of N MiB and more never "
        "split.  [default: default]",
        metavar="|".join(ALLOCATOR_NAMES),
        choices=("default", "expandable_segments", "max_split:128"),
    ),
    setting("grad-accumulation", "So many batches make an optimizer step.  [default: 1]", metavar="N"),
    setting(
        "global-batch",
        "Samples that make an optimizer step, exactly: accumulated from batches that divide it.",
        metavar="N",
    ),
    click.option(
        "--compile/--no-compile",
        default=None,
        help="With torch.compile, by its defaults: what that takes has to be measured.",
    ),
    setting("mode", "Instead of the workload's own.", choices=MODES),
    click.option(
        "--worst-case/--no-worst-case",
        default=None,
        help="With the largest batches that the data can make, of a workload whose make_batch takes a kind.",
    ),
    setting(
        "parallel",
        "Predict one of N ranks of DistributedDataParallel, with buckets and NCCL; a batch is one rank's.",
        metavar="ddp:N",
    ),
)

REPORT = click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write there a page, one HTML file, with the answer and figures of where the memory goes.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document.")
QUIET = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
