"""Workloads whose steps are timed on this machine's CPU: eight that are scored, others that constants are of.

Batches are made once, so that a step is the model's alone. Images have 112 to 160 pixels and models few
layers, so that a step of a small batch takes tens of milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.models.davenet import AudioBranch
from autofit_workers.workload.workload import Workload

_CLASSES = 100
_VOCABULARY, _LENGTH = 8000, 128


def _made_once(make: Callable[[int, torch.device], Any]) -> Callable[[int, torch.device], Any]:
    return functools.lru_cache(maxsize=1)(make)


def _of_shape(*shape: int) -> Callable[[int, torch.device], Tensor]:
    return _made_once(lambda batch_size, device: torch.randn(batch_size, *shape, device=device))


def _words(batch_size: int, device: torch.device) -> Tensor:
    return torch.randint(_VOCABULARY, (batch_size, _LENGTH), device=device)


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.float().square().mean()


def _cross_entropy(model: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = model(images)
    return functional.cross_entropy(logits.float(), torch.zeros(len(images), dtype=torch.long))


def _next_word(model: nn.Module, words: Tensor) -> Tensor:
    output = model(words)
    logits: Tensor = getattr(output, "logits", output)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def _timm(name: str, side: int, optimizer: str = "sgd-momentum", **options: Any) -> Workload:
    def build() -> nn.Module:
        timm: Any = imported("timm", f"timm:{name}")
        model: nn.Module = timm.create_model(name, num_classes=_CLASSES, **options)
        return model

    return Workload(
        build_model=build,
        make_batch=_of_shape(3, side, side),
        loss=_cross_entropy,
        optimizer=optimizer,
        name=name,
    )


def _hf(kind: str, **options: Any) -> Workload:
    def build() -> nn.Module:
        transformers: Any = imported("transformers", f"hf:{kind}")
        config = transformers.AutoConfig.for_model(kind, vocab_size=_VOCABULARY, **options)
        auto = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
        model: nn.Module = auto.from_config(config)
        return model

    return Workload(
        build_model=build, make_batch=_made_once(_words), loss=_next_word, optimizer="adamw", name=kind
    )


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int, num_layers: int) -> None:
        super().__init__()
        self.recurrent = kind(width, width, num_layers=num_layers, batch_first=True)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.recurrent(x)[0])
        return output


def _perceptrons(width: int, num_layers: int, activation: type[nn.Module]) -> nn.Module:
    hidden = [layer for _ in range(num_layers) for layer in (nn.Linear(width, width), activation())]
    return nn.Sequential(nn.Linear(256, width), *hidden, nn.Linear(width, 10))


def _plain(build: Callable[[], nn.Module], *shape: int, optimizer: str = "adam") -> Workload:
    return Workload(build_model=build, make_batch=_of_shape(*shape), loss=_mean_square, optimizer=optimizer)


def _unet() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.down, self.middle = block(3, 32), block(32, 64), block(64, 128)
            self.up = nn.ConvTranspose2d(128, 64, 2, stride=2)
            self.wide = block(128, 64)
            self.last = nn.ConvTranspose2d(64, 32, 2, stride=2)
            self.end = nn.Sequential(block(64, 32), nn.Conv2d(32, 3, 1))

        def forward(self, x: Tensor) -> Tensor:
            a = self.start(x)
            b = self.down(functional.max_pool2d(a, 2))
            c = self.up(self.middle(functional.max_pool2d(b, 2)))
            d = self.last(self.wide(torch.cat([b, c], 1)))
            out: Tensor = self.end(torch.cat([a, d], 1))
            return out

    return UNet()


def _blocks(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def _plain_network() -> nn.Module:
    return nn.Sequential(
        *_blocks(3, 32), *_blocks(32, 32), nn.MaxPool2d(2), *_blocks(32, 64), *_blocks(64, 100),
        nn.MaxPool2d(2), *_blocks(100, 256), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(4096, 10),
    )  # fmt: skip


def _deep_filters() -> nn.Module:
    return nn.Sequential(
        *_blocks(3, 64), nn.MaxPool2d(2), *_blocks(64, 192), nn.MaxPool2d(2), *_blocks(192, 384),
        *_blocks(384, 384), nn.MaxPool2d(2), *_blocks(384, 640), nn.Flatten(), nn.Linear(640 * 16, 10),
    )  # fmt: skip


def _long_filters() -> nn.Module:
    def layer(inputs: int, outputs: int, width: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, outputs, width, padding=width // 2), nn.ReLU(), nn.MaxPool1d(3, 2, 1)]

    return nn.Sequential(*layer(64, 192, 15), *layer(192, 384, 9), *layer(384, 640, 13))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(192, 3, 768, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def _audio() -> nn.Module:
    def layer(inputs: int, outputs: int, dilation: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, outputs, 3, padding=dilation, dilation=dilation), nn.Tanh()]

    return nn.Sequential(
        *layer(1, 64, 1), *layer(64, 64, 2), *layer(64, 64, 4), *layer(64, 128, 8), nn.Conv1d(128, 32, 1)
    )


# Scored.
resnet18 = _timm("resnet18", 112)
mobilenet = _timm("mobilenetv3_small_100", 160)
vit_tiny = _timm("vit_tiny_patch16_224", 224, "adamw", depth=6)
davenet_audio = _plain(AudioBranch, 40, 256, optimizer="sgd-momentum")
gpt2 = _hf("gpt2", n_layer=4, n_embd=256, n_head=4, n_positions=256)
bert = _hf("bert", num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
lstm = _plain(functools.partial(_Recurrent, nn.LSTM, 256, 2), 64, 256)
mlp = _plain(functools.partial(_perceptrons, 1024, 4, nn.ReLU), 256)
SCORED = ("resnet18", "mobilenet", "vit_tiny", "davenet_audio", "gpt2", "bert", "lstm", "mlp")

# That constants are fitted on.
plain_network = _plain(_plain_network, 3, 96, 96, optimizer="sgd-momentum")
unet = _plain(_unet, 3, 96, 96)
resnext = _timm("resnext26ts", 128)
densenet = _timm("densenet121", 96)
convnext = _timm("convnext_atto", 128, "adamw")
regnet = _timm("regnety_004", 128)
efficientnet = _timm("tf_efficientnet_lite0", 128)
wavenet = _plain(_audio, 1, 2048)
llama = _hf(
    "llama", num_hidden_layers=3, hidden_size=320, num_attention_heads=5, intermediate_size=864,
    num_key_value_heads=5,
)  # fmt: skip
encoder = _plain(_encoder, 96, 192, optimizer="adamw")
gru = _plain(functools.partial(_Recurrent, nn.GRU, 384, 1), 48, 384)
wide_lstm = _plain(functools.partial(_Recurrent, nn.LSTM, 448, 1), 40, 448)
deit = _timm("deit_tiny_patch16_224", 160, "adamw", depth=4, img_size=160, embed_dim=256, num_heads=4)
small_lstm = _plain(functools.partial(_Recurrent, nn.LSTM, 192, 2), 96, 192)
small_mlp = _plain(functools.partial(_perceptrons, 768, 6, nn.Tanh), 256)
deep_filters = _plain(_deep_filters, 3, 32, 32, optimizer="sgd-momentum")
long_filters = _plain(_long_filters, 64, 128, optimizer="sgd-momentum")
wide_mlp = _plain(functools.partial(_perceptrons, 2048, 2, nn.GELU), 256)
FITTED = (
    "plain_network", "unet", "resnext", "densenet", "convnext", "regnet", "efficientnet", "wavenet",
    "llama", "encoder", "gru", "wide_lstm", "small_lstm", "wide_mlp", "small_mlp", "deit",
    "deep_filters", "long_filters",
)  # fmt: skip

_LADDER = (1, 2, 4, 8, 16, 32)
_LADDERS = {"mlp": 16, "wide_mlp": 16, "small_mlp": 16, "lstm": 4, "gru": 4, "wide_lstm": 4, "small_lstm": 4}


def sizes_of(name: str) -> tuple[int, ...]:
    """The six batch sizes of a workload."""
    return tuple(_LADDERS.get(name, 1) * each for each in _LADDER)
