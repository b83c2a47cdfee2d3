r"""megatron.csv: Megatron-LM's functional tests with `--transformer-impl local`, the last of their 8 ranks.

Source: NVIDIA/Megatron-LM at d98e8a64, Apache-2.0: `tests/functional_tests/test_cases/**`, whose recipes
(`tests/test_utils/recipes`) give 8 GPUs. What was measured is `allocated_bytes.all.peak` of the rank that
writes for TensorBoard, the last one: the last pipeline stage. `megatron_model_configs.json` has the
arguments of each case.

Megatron's own code runs: its arguments, `initialize_megatron`, `setup_model_and_optimizer`, the forward step
of `pretrain_gpt.py`, `train_step` and the norm of the parameters that is logged after it, on a process group
that is not there. `--library FOLDER` is a checkout of that commit.

What is not in the repository, and what stands for it:
- The texts, which fill the context, and their vocabulary: GPT-2's 50257 tokens, for the arguments name a
  `bpe/vocab.json`.
- Apex, which was in the containers. Stand-ins for what local layers ask of it: its softmax (csrc/megatron in
  its repository), which puts out the scores' type, and whose causal kernel is in place in backward; its
  layer norm, which keeps its input, the means and the deviations; its Adam, which is PyTorch's, fused.
- What `torch.compile` fused there: here small functions run one operator after the other.
- Which expert a token goes to: each gets equally many.

Of a case one golden file is taken, by its name: `dgx_CARD` before older names, `dev` before `lts`, an H100
before an A100. Those of GB200, some of them newer, are left out: how many GPUs their nodes have is not in the
table. Not traced: T5 and BERT, whose scripts are no longer in the repository.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import typing_extensions
from torch import Tensor, nn

from autofit.hardware.gpus import find_gpu
from autofit_workers.spec.setup import LIKELY_SHARE
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.workload import Workload
from tests.bench.language.runs import Run, Table

FILE, _ARGUMENTS = "llm/megatron.csv", "llm/megatron_model_configs.json"
_NUM_RANKS = 8
_NUM_TOKENS = 50257
_CARDS = {"A100-80GB": find_gpu("a100-80g"), "H100-80GB": find_gpu("h100-80g")}
# In the order in which they are taken; see above.
_GOLDEN = tuple(
    f"golden_values_{name}.json" for name in ("dev_dgx_h100", "dev_dgx_a100", "lts_dgx_a100", "dev", "lts")
)
# What only says where something is kept, and how it is reported.
_LEFT_OUT = (
    "--data-path", "--vocab-file", "--merge-file", "--data-cache-path", "--save", "--load",
    "--tensorboard-dir", "--async-save", "--use-persistent-ckpt-worker",
    "--use-checkpoint-opt_param-scheduler",
)  # fmt: skip


def read(folder: Path) -> list[Run]:
    """The newest row of each case of local layers whose script there is."""
    configs = json.loads((folder / _ARGUMENTS).read_text(encoding="utf-8"))
    by_case = {Path(path).name: config for path, config in configs.items()}
    newest: dict[str, tuple[int, dict[str, str]]] = {}
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            more = _more_of(row)
            arguments = by_case.get(more["test_case"], {}).get("MODEL_ARGS", {})
            if arguments.get("--transformer-impl") != "local" or "--encoder-num-layers" in arguments:
                continue
            if more["golden"] not in _GOLDEN or row["gpu"] not in (*_CARDS, "unspecified"):
                continue
            age = _GOLDEN.index(more["golden"])
            if age < newest.get(more["test_case"], (len(_GOLDEN), row))[0]:
                newest[more["test_case"]] = age, row
    return [_run(case, row, by_case[case]) for case, (_, row) in newest.items()]


def _more_of(row: dict[str, str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in row["other"].split("; "))


def _run(case: str, row: dict[str, str], config: dict[str, Any]) -> Run:
    arguments = config["MODEL_ARGS"]
    variables = {name: str(value) for name, value in config["ENV_VARS"].items()}
    return Run(
        table=TABLE.name,
        name=f"{case} {row['gpu']}",
        group="moe" if "--num-experts" in arguments else "gpt",
        make=functools.partial(_workload, case, arguments, variables),
        batch_size=int(row["batch_size"]),
        architecture=_CARDS.get(row["gpu"], _CARDS["A100-80GB"]).architecture,
        nonzero_share=_share_of_expert(arguments),
        measured={"allocated peak": int(row["peak_bytes"])},
    )


def _share_of_expert(arguments: dict[str, Any]) -> float:
    """How many of the tokens an expert gets: each goes to one."""
    return 1 / arguments["--num-experts"] if "--num-experts" in arguments else LIKELY_SHARE


def words_of(arguments: dict[str, Any]) -> list[str]:
    """The command line of a case, with random tokens in the place of its texts."""
    words = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(_NUM_TOKENS)]
    for name, value in arguments.items():
        if name not in _LEFT_OUT and value is not False:
            words += [name] if value is True else [name, str(value)]
    return words


def _workload(case: str, arguments: dict[str, Any], variables: dict[str, str]) -> Workload:
    from autofit_workers.tracing.fake import dynamo, fake_gpu
    from autofit_workers.tracing.fake.ranks import group
    from autofit_workers.tracing.kernels import triton

    fake_gpu.install()
    dynamo.install()
    triton.install()
    group.install()
    sys.modules.update(_apex())
    if not hasattr(typing, "override"):  # it asks for Python 3.12
        typing.override = typing_extensions.override
    rank = str(_NUM_RANKS - 1)
    os.environ.update(variables, RANK=rank, LOCAL_RANK="0", WORLD_SIZE=str(_NUM_RANKS))
    imported("megatron.training", case)
    _answer(imported("megatron.core.tensor_parallel.random", case))
    _balance(
        imported("megatron.core.transformer.moe.router", case),
        imported("megatron.core.transformer.moe.token_dispatcher", case),
        _share_of_expert(arguments),
    )
    trained = _Trained(imported("pretrain_gpt", case), words_of(arguments))
    return Workload(
        build_model=trained.build_model,
        make_batch=lambda batch_size, _device: torch.zeros(batch_size),
        loss=lambda *_: None,
        optimizer=lambda _parameters: trained.optimizer(),
        step=trained.step,
        name=case,
    )


def _answer(random: Any) -> None:
    """What `torch.cuda` answers on a GPU: random states, of which memory knows nothing."""
    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda *_args, **_kwargs: None


def _balance(router: Any, dispatching: Any, share: float) -> None:
    """Lets every expert get as many tokens as every other one, which is what Sinkhorn's rule is for."""
    router.sinkhorn = functools.partial(router.sinkhorn, tol=math.inf)  # values alone would end its loop
    dispatcher = dispatching.MoEAllGatherTokenDispatcher
    dispatch, permute = dispatcher.dispatch_postprocess, dispatching.permute

    def permuted(tokens: Tensor, routed: Tensor, *, num_out_tokens: int, **options: Any) -> Any:
        del num_out_tokens  # a sum of values
        return permute(tokens, routed, num_out_tokens=round(routed.numel() * share), **options)

    def dispatched(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        tokens, counts, probabilities = dispatch(*args)
        return tokens, torch.full(counts.shape, tokens.shape[0] // counts.numel()), probabilities

    dispatcher.dispatch_postprocess, dispatching.permute = dispatched, permuted


class _Trained:
    """What `pretrain_gpt.py` trains, up to its loop and then a step of it at a time."""

    def __init__(self, script: Any, words: list[str]) -> None:
        self._script = script
        self._words = words
        self._training: Any = imported("megatron.training.training", "Megatron-LM")
        self._models: list[Any] = []
        self._optimizer: Any = None
        self._scheduler: Any = None
        self._iteration = 0

    def build_model(self) -> nn.Module:
        script, training = self._script, self._training
        sys.argv[1:] = self._words
        arguments: Any = imported("megatron.training.arguments", "Megatron-LM")
        initialize: Any = imported("megatron.training.initialize", "Megatron-LM")
        self._arguments = arguments.parse_and_validate_args(
            args_defaults={"tokenizer_type": "GPT2BPETokenizer"}
        )
        initialize.initialize_megatron(get_embedding_ranks=script.get_embedding_ranks)
        training.update_train_iters(self._arguments)
        self._models, self._optimizer, self._scheduler = training.setup_model_and_optimizer(
            script.ModelType.encoder_or_decoder, functools.partial(script.model_provider, script.gpt_builder)
        )
        self._config = script.get_attr_wrapped_model(self._models[0], "config")
        self._prepare()
        made: nn.Module = self._models[0]
        return made

    def _prepare(self) -> None:
        """What `train` sets before its loop."""
        config, optimizer, models = self._config, self._optimizer, self._models
        distributed: Any = imported("megatron.core.distributed", "Megatron-LM")
        config.grad_scale_func = optimizer.scale_loss
        if isinstance(models[0], distributed.DistributedDataParallel) and self._arguments.overlap_grad_reduce:
            (config.no_sync_func,) = [model.no_sync for model in models]
        if self._arguments.overlap_param_gather and self._arguments.align_param_gather:
            (config.param_sync_func,) = [model.start_param_sync for model in models]
        config.finalize_model_grads_func = distributed.finalize_model_grads

    def optimizer(self) -> torch.optim.Optimizer:
        each: Any = self._optimizer
        while hasattr(each, "chained_optimizers"):
            each = each.chained_optimizers[0]
        made: torch.optim.Optimizer = each.optimizer
        return made

    def step(self, _model: nn.Module, _optimizer: Any, _batch: Any) -> None:
        schedules: Any = imported("megatron.core.pipeline_parallel", "Megatron-LM")
        utils: Any = imported("megatron.training.utils", "Megatron-LM")
        reruns: Any = imported("megatron.core.rerun_state_machine", "Megatron-LM")
        self._training.train_step(
            self._script.forward_step,
            reruns.RerunDataIterator(_Batches(self._arguments)),
            self._models,
            self._optimizer,
            self._scheduler,
            self._config,
            schedules.get_forward_backward_func(),
            iteration=self._iteration,
        )
        self._iteration += 1
        if self._arguments.log_params_norm:
            utils.calc_params_l2_norm(self._models)


class _Batches:
    """What Megatron's data loader gives of texts that fill the context."""

    def __init__(self, arguments: Any) -> None:
        self._shape = (arguments.micro_batch_size, arguments.seq_length)
        self._has_mask = arguments.create_attention_mask_in_dataloader

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self

    def __next__(self) -> dict[str, Tensor]:
        tokens = torch.zeros(self._shape, dtype=torch.int64)
        batch = {
            "tokens": tokens,
            "labels": tokens.clone(),
            "loss_mask": torch.ones(self._shape),
            "position_ids": tokens.clone(),
        }
        if self._has_mask:
            batch["attention_mask"] = torch.zeros(self._shape[0], 1, self._shape[1], self._shape[1]).bool()
        return batch


def _apex() -> dict[str, ModuleType]:
    """Stand-ins for what local layers take of Apex."""
    softmax: dict[str, Any] = {
        "forward": lambda scores, *_: torch.empty_like(scores),
        "backward": lambda gradients, *_: torch.empty_like(gradients),
        "get_batch_per_block": lambda *_: 1,
    }
    causal = {**softmax, "backward": lambda gradients, *_: gradients}
    made = {
        "apex": {},
        "apex.normalization": {},
        "apex.normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": _LayerNorm},
        "apex.optimizers": {"FusedAdam": _Adam, "FusedSGD": torch.optim.SGD},
        "apex.multi_tensor_apply": {"multi_tensor_applier": _applied},
        "amp_C": {"multi_tensor_l2norm": _norm, "multi_tensor_scale": lambda *_: None},
        "scaled_softmax_cuda": softmax,
        "scaled_masked_softmax_cuda": softmax,
        "scaled_upper_triang_masked_softmax_cuda": causal,
    }
    modules = {}
    for name, members in made.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(members)
    return modules


def _applied(kernel: Any, _overflow: Tensor, lists: list[list[Tensor]], *arguments: Any) -> Any:
    return kernel(lists, *arguments)


def _norm(lists: list[list[Tensor]], *_: Any) -> tuple[Tensor, None]:
    return torch.zeros(1, device=lists[0][0].device), None


class _Adam(torch.optim.AdamW):
    """Adam that takes no memory while it steps; of its modes the one with decoupled weight decay."""

    def __init__(self, params: Any, **options: Any) -> None:
        kept = {name: options[name] for name in ("lr", "betas", "eps", "weight_decay")}
        super().__init__(params, fused=True, **kept)


class _LayerNorm:
    """A layer norm by PyTorch's operator, which keeps what Apex's keeps."""

    @staticmethod
    def apply(hidden: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float, *_: Any) -> Tensor:
        return nn.functional.layer_norm(hidden, tuple(shape), weight, bias, eps)

    @staticmethod
    def forward(_ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float) -> None:
        """Has the arguments that Megatron looks for a memory-efficient one among."""


TABLE = Table(name="megatron", read=read, asked={"allocated peak": (0.04, 0.12)}, of_scripts=True)
