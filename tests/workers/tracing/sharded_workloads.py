"""Small workloads that are sharded, and one rank of each as PyTorch runs it on the CPU.

Run as a program, with words of the form `NAME=PARALLEL`, it writes what a rank allocates; of those of the
form `tracked:NAME=PARALLEL=KNOBS`, the knobs as a JSON object, what PyTorch's own tracker says. Without words
it is one of several ranks that meet over gloo: it reads lines `RANK STORE NAME=PARALLEL`, the store a file of
that run's own, and answers each with a line.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import json
import sys
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from autofit_workers.apply import setting
from autofit_workers.apply.parallel.ranks import Ranks
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.parallel_kinds import FSDP
from autofit_workers.spec.setup import Parallel
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.optimizers import make_optimizers
from autofit_workers.workload.step import Part, train_step
from autofit_workers.workload.workload import Workload

VOCABULARY = 512
TOKENS = 32


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, tokens, width = hidden.shape
        query, key, value = (
            each.view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for each in self.c_attn(hidden).split(width, dim=2)
        )
        scores = (query @ key.transpose(-2, -1)).softmax(-1)
        output: Tensor = self.c_proj((scores @ value).transpose(1, 2).reshape(batch, tokens, width))
        return output


class Block(nn.Module):
    """A block of layers as in GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, 4)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden))
        output: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return output


class Gpt(nn.Module):
    """A language model whose head is its embedding."""

    pp_plan = ("wte", "wpe", "h", "ln_f", "lm_head")

    def __init__(self, width: int = 128, num_blocks: int = 3) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(TOKENS, width)
        self.h = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = tokens
        if self.wte is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            hidden = self.wte(tokens) + self.wpe(places)
        for block in self.h:
            hidden = block(hidden)
        output: Tensor = hidden if self.lm_head is None else self.lm_head(self.ln_f(hidden))
        return output


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.down(self.up(hidden).relu())
        return output


class Perceptrons(nn.Module):
    """Perceptrons one after the other, with plans for tensor parallelism and for pipelines."""

    pp_plan = ("layers",)

    def __init__(self, width: int = 128, num_blocks: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Perceptron(width) for _ in range(num_blocks))

    @property
    def tp_plan(self) -> dict[str, Any]:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Misnamed(Perceptrons):
    """Perceptrons with a plan for tensor parallelism that names a missing module."""

    @property
    def tp_plan(self) -> dict[str, Any]:
        return {name.replace("down", "dwn"): style for name, style in super().tp_plan.items()}


class Basic(nn.Module):
    """A block of layers as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.bn1(self.conv1(images)).relu()
        output: Tensor = (self.bn2(self.conv2(hidden)) + self.shortcut(images)).relu()
        return output


class Resnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.stages = nn.ModuleList(
            nn.Sequential(Basic(inputs, outputs, stride), Basic(outputs, outputs, 1))
            for inputs, outputs, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images)
        for stage in self.stages:
            hidden = stage(hidden)
        output: Tensor = self.head(hidden.mean((2, 3)))
        return output


def _llama(**changes: Any) -> nn.Module:
    transformers = imported("transformers", "llama")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=64, attn_implementation="eager",
        use_cache=False, **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _mixtral(**changes: Any) -> nn.Module:
    transformers = imported("transformers", "mixtral")
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=64, attn_implementation="eager",
        num_local_experts=4, num_experts_per_tok=2, use_cache=False, **changes,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


def _tokens(batch_size: int, device: torch.device) -> Tensor:
    return torch.randint(VOCABULARY, (batch_size, TOKENS), device=device)


def _next_tokens(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens)
    logits = getattr(logits, "logits", logits)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _rows(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, 128, device=device)


def _images(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, 3, 3, 3, device=device)


_sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)
_language = functools.partial(Workload, make_batch=_tokens, loss=_next_tokens, optimizer=_sgd)
gpt = _language(build_model=Gpt)
llama = _language(build_model=_llama)
# Of a loss that autocast leaves alone on a GPU as on the CPU.
llama_squared = dataclasses.replace(
    llama, loss=lambda model, tokens: model(tokens).logits.float().square().mean()
)
mixtral = _language(build_model=_mixtral)


@dataclasses.dataclass
class _Attending:
    """Llama by `scaled_dot_product_attention`, of sequences of so many tokens."""

    num_tokens: int = 256
    changes: tuple[tuple[str, Any], ...] = ()

    def build(self) -> nn.Module:
        model = _llama(**dict(self.changes))
        model.set_attn_implementation("sdpa")
        return model

    def batch(self, batch_size: int, device: torch.device) -> dict[str, Tensor]:
        tokens = torch.randint(VOCABULARY, (batch_size, self.num_tokens), device=device)
        places = torch.arange(self.num_tokens, device=device).expand(batch_size, -1).contiguous()
        return {"input_ids": tokens, "labels": tokens.clone(), "position_ids": places}

    def workload(self) -> Workload:
        return Workload(
            build_model=self.build,
            make_batch=self.batch,
            loss=lambda model, batch: model(**batch).loss,
            optimizer=_sgd,
        )


attending = _Attending().workload()
attending_to_odd = _Attending(250).workload()
shifting = dataclasses.replace(
    attending, loss=lambda model, batch: model(batch["input_ids"][:, :-1]).logits.square().mean()
)
attending_to_window = _Attending(changes=(("sliding_window", 64),)).workload()


def _as_one_unit() -> nn.Module:
    model = Gpt()
    model.fsdp_options = {"auto_wrap_policy": None, "use_orig_params": False}
    return model


gpt_as_one_unit = _language(build_model=_as_one_unit)
perceptrons = Workload(
    build_model=Perceptrons,
    make_batch=_rows,
    loss=lambda model, rows: model(rows).square().mean(),
    optimizer=_sgd,
)
five_perceptrons = dataclasses.replace(perceptrons, build_model=functools.partial(Perceptrons, num_blocks=5))
misnamed = dataclasses.replace(perceptrons, build_model=Misnamed)
resnet = Workload(
    build_model=Resnet,
    make_batch=_images,
    loss=lambda model, images: model(images).square().mean(),
    optimizer=_sgd,
)


def _deepspeed_optimizer(path: str) -> Any:
    def made(parameters: Any) -> torch.optim.Optimizer:
        module, _, name = path.rpartition(".")
        optimizer: torch.optim.Optimizer = getattr(importlib.import_module(module), name)(parameters)
        return optimizer

    return made


fused_adam = _language(build_model=Gpt, optimizer=_deepspeed_optimizer("deepspeed.ops.adam.FusedAdam"))
fused_lamb = _language(build_model=Gpt, optimizer=_deepspeed_optimizer("deepspeed.ops.lamb.FusedLamb"))
stepping = _language(build_model=Gpt, step=lambda model, optimizer, batch: None)

NUM_STEPS, STEPS = 2, "steps"
SMALLEST_BYTES = 32
BATCH_SIZE, BATCH_SIZE_OF_TRACKER = 4, 64
MEETING_TIMEOUT = timedelta(minutes=5)  # of a collective, for a rank that another left alone


def allocated_by_a_rank(workload: Workload, parallel: Parallel) -> list[int]:
    """Bytes of every allocation of the CPU in two steps, negative for a free.

    PyTorch reports no free of what was allocated before it was asked to, and of what lies where such a block
    was another's size (`ProfiledCPUMemoryReporter` of c10/core/CPUAllocator.cpp): it is asked from the
    beginning.
    """
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with (
        torch.autograd.set_multithreading_enabled(False),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        ExitStack() as kept,
    ):
        ranks = Ranks(parallel)
        model = ranks.cut(workload.build_model(), workload)
        if not ranks.brings_model:
            model = ranks.wrapped(ranks.spread(model, device_kind="cpu"), first_seed=0)
        optimizer = make_optimizers(workload, model)
        kept.enter_context(ranks.joined("cpu"))
        engine = ranks.engine(model, optimizer, Knobs(), BATCH_SIZE)
        workload = workload if engine is None else engine.stepped(workload)
        num_samples = BATCH_SIZE * parallel.num_microbatches
        gc.collect()
        with torch.profiler.record_function(STEPS):
            for _ in range(NUM_STEPS):
                train_step(workload, model, optimizer, workload.make_batch(num_samples, torch.device("cpu")))
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    (steps,) = (each for each in events if each.name() == STEPS)
    memory = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    return [
        e.nbytes()
        for e in memory
        if abs(e.nbytes()) >= SMALLEST_BYTES and steps.start_ns() <= e.start_ns() <= steps.end_ns()
    ]


def peak_of_tracker(workload: Workload, parallel: Parallel, knobs: Knobs) -> list[int]:
    """Peak bytes of each of two steps, as PyTorch's own tracker counts them."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    model = setting.converted_model(workload.build_model(), knobs)
    model = Ranks(parallel).spread(model, device_kind="cpu", precision=knobs.precision)
    optimizer = make_optimizers(workload, model)
    tracker: Any
    if parallel.degree(FSDP) > 1:
        tracker = FSDPMemTracker(model, optimizer)
        track_batch = tracker.track_inputs
    else:
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        track_batch = tracker.track_external
    num_passes = knobs.num_passes(BATCH_SIZE_OF_TRACKER)
    autocast = setting.autocast_factory(knobs, "cpu", parallel)
    peaks = []
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(NUM_STEPS):
            peaks.append(0)
            for number in range(1, num_passes + 1):
                part = Part(number=number, num_passes=num_passes, num_batches=num_passes)
                batch = workload.make_batch(BATCH_SIZE_OF_TRACKER, torch.device("cpu"))
                track_batch((batch,))
                with tracker:
                    train_step(workload, model, optimizer, batch, autocast=autocast, part=part)
                snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
                peaks[-1] = max(peaks[-1], snapshot["Total"])
                tracker.reset_mod_stats()
    return peaks


def _run_in(group: dict[str, Any], word: str) -> list[int]:
    plain = word.removeprefix("tracked:")
    name, parallel, *knobs = plain.split("=", 2)
    run = (
        allocated_by_a_rank
        if plain == word
        else functools.partial(peak_of_tracker, knobs=Knobs(**json.loads(*knobs)))
    )
    degrees = Parallel.parse(parallel)
    distributed.init_process_group(world_size=degrees.num_ranks, **group)
    try:
        return run(globals()[name], degrees)
    finally:
        distributed.destroy_process_group()


def _of_one() -> dict[str, Any]:
    """Options of a fake group, whose collectives are over when they return.

    See `distributed_workloads.OneRank`.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return {"backend": "fake", "rank": 0, "store": FakeStore()}


def _over_gloo(rank: str, store: str, word: str) -> list[int]:
    meeting = distributed.FileStore(store, Parallel.parse(word.split("=")[1]).num_ranks)
    group = {"backend": "gloo", "rank": int(rank), "store": meeting, "timeout": MEETING_TIMEOUT}
    return _run_in(group, word)


if __name__ == "__main__":
    if sys.argv[1:]:
        json.dump({word: _run_in(_of_one(), word) for word in sys.argv[1:]}, sys.stdout)
    else:
        from tests.workers.tracing import following_gloo  # others load this file by its path alone

        following_gloo.install()
        for line in sys.stdin:
            sys.stdout.write(f"{json.dumps(_over_gloo(*line.split()))}\n")
            sys.stdout.flush()
