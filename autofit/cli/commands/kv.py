"""`autofit kv`: predicts the memory that a language model server has left for its KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.interruption import print_document
from autofit.cli.options.shared import JSON, QUIET, gpu_completions, model_argument
from autofit.errors import UsageError
from autofit.hardware.gpus import find_gpu
from autofit.questions.kv import DTYPES, KV_DTYPES, KvQuestion
from autofit.serving.engines import ENGINES
from autofit.settings.workloads import refer

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.errors import ExitCode

_COUNT = click.IntRange(min=1)


def _complete_gpu(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return gpu_completions(incomplete)


def _complete_engine(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in ENGINES if name.startswith(incomplete)]


@click.command()
@model_argument
@click.option(
    "--model",
    metavar="hf:MODEL",
    help="A model type, a config.json, its folder, or a hub's name.",
)
@click.option(
    "--gpu", required=True, metavar="CARD", shell_complete=_complete_gpu, help="The card, such as h100-80g."
)
@click.option(
    "--engine",
    default="vllm",
    metavar="|".join(ENGINES),
    shell_complete=_complete_engine,
    help="The server.  [default: vllm]",
)
@click.option(
    "--engine-release",
    "release",
    metavar="VERSION",
    help="Its release, such as 0.7.  [default: the newest known]",
)
@click.option(
    "--tensor-parallel", type=_COUNT, default=1, metavar="N", help="GPUs that share the model.  [default: 1]"
)
@click.option(
    "--gpu-memory-utilization",
    type=float,
    metavar="SHARE",
    help="The share of the card that the engine may take.  [default: the engine's]",
)
@click.option(
    "--max-num-batched-tokens", type=_COUNT, metavar="N", help="Tokens of a batch.  [default: the engine's]"
)
@click.option(
    "--max-num-seqs", type=_COUNT, metavar="N", help="Sequences of a batch.  [default: the engine's]"
)
@click.option(
    "--max-model-len",
    type=_COUNT,
    metavar="N",
    help="The longest sequence.  [default: the model's positions]",
)
@click.option("--block-size", type=_COUNT, metavar="N", help="Tokens of a block.  [default: the engine's]")
@click.option(
    "--kv-dtype", default="auto", metavar="|".join(KV_DTYPES), help="Of the KV cache.  [default: the model's]"
)
@click.option(
    "--dtype", metavar="|".join(DTYPES), help="Of the weights.  [default: the checkpoint's, else bf16]"
)
@click.option(
    "--max-loras", type=click.IntRange(min=0), default=0, metavar="N", help="Adapters at once.  [default: 0]"
)
@click.option(
    "--max-lora-rank", type=_COUNT, default=16, metavar="R", help="Their largest rank.  [default: 16]"
)
@click.option(
    "--length", type=_COUNT, metavar="N", help="How many requests of N tokens there may be at once."
)
@QUIET
@JSON
@click.pass_obj
def kv(
    backend: Backend, /, *, model: str | None, gpu: str, quiet: bool, as_json: bool, **asked: Any
) -> ExitCode:
    """Predict what a server has left for its KV cache.

    Prints what weights, the pass that the engine starts with, and memory outside PyTorch take of the card;
    how many tokens the rest holds, in how many blocks; the longest sequence, and how many requests there may
    be at once; on cards that servers were measured on, how soon a request has its first token and how many
    follow a second. No GPU is needed.

    Exit codes: 0 there is room for a KV cache; 3 there is none; 2 wrong options; 4 the model cannot be built.
    """
    if model is None:
        raise UsageError("no model: name one, such as hf:gpt2, or give a config.json as hf:FILE")
    question = KvQuestion(gpu=find_gpu(gpu), **asked)
    workload = refer(model)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        answer = backend.kv(workload, question, emit)
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.answers.configuration.kv import kv_sections
        from autofit.cli.text.sections import print_sections

        print_sections(kv_sections(answer))
    return answer.exit_code
