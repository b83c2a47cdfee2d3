"""Traces compiled steps of small models, and prints what their wrappers allocate and what Inductor estimates.

Run as a program, as it patches PyTorch for good: one line of JSON for each model.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from autofit_workers.tracing.compiled import entry
from autofit_workers.tracing.fake import dynamo, fake_device, fake_gpu
from autofit_workers.tracing.kernels import triton
from autofit_workers.tracing.recording.recorder import Recorder


class Block(nn.Module):
    """Block of a decoder: attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second_norm(x))


class Decoder(nn.Module):
    """Decoder with an optional graph break between its two blocks."""

    def __init__(self, *, breaks: bool = False, width: int = 128, vocabulary: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.first, self.second = Block(width, 4), Block(width, 4)
        self.head = nn.Linear(width, vocabulary)
        self.breaks = breaks

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.first(self.tokens(tokens))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.head(self.second(x))


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x)


class Llama(nn.Module):
    """Gated perceptron after a norm, with rotated queries, as Llama's blocks have."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norm = RmsNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        self.register_buffer("angles", torch.outer(torch.arange(64.0), 1 / 10000 ** torch.linspace(0, 1, 64)))

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        sin, cos = self.angles.sin(), self.angles.cos()
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        normed = self.norm(rotated)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Unet(nn.Module):
    """Two scales with a connection between them."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        shallow = F.silu(self.down(x))
        return self.out(torch.cat((shallow, F.silu(self.up(F.silu(self.deep(shallow))))), 1))


class Experts(nn.Module):
    """Mixture of four experts, of which each token takes the best; which ones decide shapes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).softmax(-1)
        return sum(chosen[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 256))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)[0])


def tokens(batch_size: int, device: str = "cuda") -> Tensor:
    return torch.randint(0, 512, (batch_size, 64), device=device)


def numbers(*shape: int) -> Callable[..., Tensor]:
    return lambda batch_size, device="cuda": torch.randn(batch_size, *shape, device=device)


# By name: the model, its batch, and the batch sizes of the steps.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], tuple[int, ...]]] = {
    "perceptron": (_perceptron, numbers(256), (64, 64)),
    "convolutions": (_convolutions, numbers(3, 32, 32), (8, 8)),
    "decoder": (Decoder, tokens, (8, 8)),
    "llama": (Llama, numbers(64, 128), (8, 8)),
    "unet": (Unet, numbers(3, 32, 32), (8, 8)),
    "recurrent": (Recurrent, numbers(16, 32), (8, 8)),
    "experts": (Experts, numbers(16, 64), (8, 8)),
    "broken": (lambda: Decoder(breaks=True), tokens, (8, 8)),
    "dynamic": (Decoder, tokens, (4, 6, 8)),
    "autocast": (Decoder, tokens, (8, 8)),
    "any size": (Decoder, tokens, (4, 6)),
    "late": (_perceptron, numbers(256), (64, 64)),
}


class Compared:
    """What each wrapper's calls took, beside what Inductor estimated when it was generated.

    Attributes:
        calls: for each call of a wrapper, its peak without inputs that it may not free, and the estimate.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.calls: list[tuple[int, int]] = []
        self._recorder = recorder

    @contextmanager
    def followed(self) -> Iterator[None]:
        from torch._inductor.graph import GraphLowering

        compile_to_module = GraphLowering.compile_to_module

        def compiled(lowering: Any) -> Any:
            module = compile_to_module(lowering)
            module.call = self._observed(module.call, *estimated(lowering))
            return module

        GraphLowering.compile_to_module = compiled
        try:
            yield
        finally:
            GraphLowering.compile_to_module = compile_to_module

    def _observed(self, call: Callable[[Any], Any], planned: int, freed: int) -> Callable[[Any], Any]:
        def observed(arguments: Any) -> Any:
            before, start = self._recorder.live_bytes, self._recorder.position
            result = call(arguments)
            peak = before + _peak_of(self._recorder, start)
            self.calls.append((peak - (before - freed), planned))
            return result

        return observed


def _peak_of(recorder: Recorder, start: int) -> int:
    sizes = [allocation.num_bytes for allocation in recorder.allocations]
    changes = [sizes[event] if event >= 0 else -sizes[~event] for event in recorder.events()[start:]]
    return max(itertools.accumulate(changes, initial=0))


def estimated(lowering: Any) -> tuple[int, int]:
    """Inductor's estimate of a graph's peak, and the bytes of inputs that it frees."""
    from torch._inductor import memory

    scheduler, outputs = lowering.scheduler, lowering.get_output_names()
    _, freeable = memory.prepare_planning_info(
        scheduler.nodes,
        scheduler.name_to_buf,
        scheduler.name_to_fused_node,
        list(lowering.graph_inputs),
        outputs,
    )
    for name in lowering.removed_buffers:  # by fusion, which comes after the plan
        if name in scheduler.name_to_buf:
            planned = scheduler.name_to_buf[name].mpi_buffer
            planned.size_alloc = planned.size_free = 0
    peak, _ = memory.estimate_peak_memory(scheduler.nodes, freeable, outputs)
    return peak, sum(each.mpi_buffer.size_free for each in freeable.values())


def compared(name: str) -> dict[str, Any]:
    """Traces the steps of a model, and compares each call of its wrappers with Inductor's estimate."""
    make, batch, sizes = MODELS[name]
    recorder = Recorder()
    mode = fake_gpu.FakeGpuMode(recorder.observe)
    mode.worked = recorder.note_work
    found = Compared(recorder)
    entry.begin_program()
    entry.MOST_SECONDS = 0.0 if name == "late" else 600.0
    with mode, torch.autograd.set_multithreading_enabled(False):
        with fake_device.parameters_diverted(mode):
            model = make()
        fake_device.move_to_device(mode, model)
        step = entry.compiled_model(model, dynamic=True if name == "any size" else None)
        with recorder.following(model), found.followed():
            for size in sizes:
                with torch.autocast("cuda", torch.bfloat16, enabled=name == "autocast"):
                    loss = step(batch(size)).float().pow(2).mean()
                loss.backward()
                model.zero_grad()
    modules = {a.module for a in recorder.allocations if a.operator == "aten.empty_strided"}
    lines = {a.source.rpartition("/")[2].partition(":")[0] for a in recorder.allocations if a.source}
    return {
        "name": name,
        "calls": found.calls,
        "notes": entry.notes(),
        "modules": sorted(modules),
        "files": sorted(lines),
        "kernels": sorted({call.work.operator for call in recorder.work.calls}),
    }


def main() -> None:
    dynamo.install()
    fake_gpu.install()
    triton.install()
    entry.install()
    from torch._inductor import config

    config.inplace_buffers = False  # which Inductor's estimate does not know
    for name in sys.argv[1:] or MODELS:
        sys.stdout.write(json.dumps(compared(name)) + "\n")


if __name__ == "__main__":
    main()
