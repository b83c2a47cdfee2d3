"""The convolutions that cuDNN is asked about for the table of plans, by family of models.

    python -m tests.bench.convolution_shapes [--per-family 40] [--family NAME …] [--out FILE]

runs models of timm and torchvision, the built-in workloads and a few networks of sounds, videos and
segmentation on the meta device, notes every geometry of their convolutions, thins each family out
evenly, and writes `convolution_shapes.json.gz` beside this file. Wants timm and torchvision; the
table itself (`tests.bench.plan_table`) is built from the written file and `_uneven`, which needs neither.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autofit_workers.spec.work import Convolution, ConvPass
from autofit_workers.workload.libraries.importing import imported
from tests.bench.tables.families import ACCEPTANCE_FAMILIES, family_of, timm_modules

SHAPES_PATH = Path(__file__).with_name("convolution_shapes.json.gz")
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

# A geometry belongs to the family that has it first: those that the project promises an accuracy for
# come first, and keep more of theirs.
_TIMM_MODULES = (
    "vgg", "resnet", "densenet", "regnet", "efficientnet", "mobilenetv3", "convnext", "vision_transformer",
    "swin_transformer", "byobnet", "cspnet", "dla", "dpn", "edgenext", "ghostnet", "hgnet", "hrnet",
    "inception_next", "inception_resnet_v2", "inception_v3", "inception_v4", "nfnet", "pvt_v2", "repvit",
    "res2net", "resnest", "resnetv2", "selecsls", "senet", "sknet", "tresnet", "volo", "vovnet",
    "xception_aligned",
)  # fmt: skip
_TIMM_PER_MODULE = 24
_IMAGE = (3, 224, 224)
# The family ("" for the model's own name), models of it, and the shape of a sample.
_TORCHVISION = (
    ("mobilenet", ("mobilenet_v2", "mobilenet_v3_large"), _IMAGE),
    ("resnet", ("resnet50", "wide_resnet50_2"), _IMAGE),
    ("resnext", ("resnext50_32x4d",), _IMAGE),
    ("densenet", ("densenet121",), _IMAGE),
    ("efficientnet", ("efficientnet_b0", "efficientnet_v2_s"), _IMAGE),
    ("inception_v3", ("inception_v3",), _IMAGE),
    ("vgg", ("vgg16",), _IMAGE),
    ("", ("alexnet", "googlenet", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1"), _IMAGE),
    ("video", ("r3d_18", "r2plus1d_18"), (3, 16, 112, 112)),
    ("segmentation", ("fcn_resnet50", "deeplabv3_resnet50"), (3, 512, 512)),
)
_BUILTINS = {"davenet": "davenet", "resnet50": "resnet", "vgg16": "vgg", "wavenet": "wavenet"}

_MAP_ELEMENTS = range(2**12, 2**21 + 2**20 + 1)  # of a sample, in geometries of no model

_Build = Callable[[], tuple[torch.nn.Module, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Geometry:
    """A convolution but for its batch, direction, type and layout.

    Attributes:
        family: of the model it was first seen in.
        input_shape, output_shape: of one sample, channels first.
    """

    family: str
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def call(self, conv_pass: ConvPass, num_samples: int, dtype: str, *, channels_last: bool) -> Convolution:
        """One call with this geometry."""
        return Convolution(
            conv_pass=conv_pass,
            input_shape=(num_samples, *self.input_shape),
            weight_shape=self.weight_shape,
            output_shape=(num_samples, *self.output_shape),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            dtype=dtype,
            element_bytes=ELEMENT_BYTES[dtype],
            channels_last=channels_last,
        )


def all_shapes() -> list[Geometry]:
    """Every geometry that the table of plans is made of: those that are checked in, and uneven ones."""
    return [*_read_shapes(), *_uneven()]


def _read_shapes() -> list[Geometry]:
    rows = json.loads(gzip.decompress(SHAPES_PATH.read_bytes()))
    return [
        Geometry(
            family=family,
            input_shape=tuple(input_shape),
            weight_shape=tuple(weight_shape),
            output_shape=tuple(output_shape),
            stride=tuple(stride),
            padding=tuple(padding),
            dilation=tuple(dilation),
            groups=groups,
        )
        for family, input_shape, weight_shape, output_shape, stride, padding, dilation, groups in rows
    ]


class _Convolutions(TorchDispatchMode):
    """Notes the geometry of every convolution that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            source, weight, _bias, stride, padding, dilation, transposed, _output_padding, groups = args
            # The forward of a transposed convolution is the data gradient of the plain one.
            ends = (result, source) if transposed else (source, result)
            num_spatial = weight.dim() - 2
            vectors = [tuple(v) * (num_spatial if len(v) == 1 else 1) for v in (stride, padding, dilation)]
            shapes = tuple(ends[0].shape[1:]), tuple(weight.shape), tuple(ends[1].shape[1:])
            self.seen.append((*shapes, *vectors, groups))
        return result


def _geometries(family: str, build: _Build) -> list[Geometry]:
    """The geometries of a model, run once on the meta device."""
    with torch.device("meta"), torch.no_grad(), _Convolutions() as convolutions:
        model, batch = build()
        model.eval()
        convolutions.seen.clear()  # some models run themselves to learn their shapes
        model(*batch) if isinstance(batch, tuple) else model(batch)
    return [
        Geometry(
            family=family,
            input_shape=seen[0],
            weight_shape=seen[1],
            output_shape=seen[2],
            stride=seen[3],
            padding=seen[4],
            dilation=seen[5],
            groups=seen[6],
        )
        for seen in dict.fromkeys(convolutions.seen)
    ]


def _models() -> Iterator[tuple[str, str, _Build]]:
    """The family, the name and the maker of each model with a batch for it."""
    timm: Any = imported("timm", "timm")
    imported("torchvision", "torchvision")
    from torchvision import models

    modules = timm_modules()
    for module in _TIMM_MODULES:
        names = sorted(name for name in timm.list_models() if modules.get(name) == module)
        for name in _evenly(names, _TIMM_PER_MODULE):
            yield family_of(name, module), name, functools.partial(_timm, timm, name)
    for family, names, sample_shape in _TORCHVISION:
        for name in names:
            yield family or name, name, functools.partial(_torchvision, models, name, sample_shape)
    yield "unet", "unet", lambda: (_unet(), torch.empty(1, 3, 256, 256))
    for name, family in _BUILTINS.items():
        yield family, name, functools.partial(_builtin, name)


def _torchvision(models: Any, name: str, sample_shape: tuple[int, ...]) -> tuple[torch.nn.Module, Any]:
    # Those for segmentation would fetch the weights of the network that they begin with.
    options = {"weights_backbone": None} if name.endswith("_resnet50") else {}
    return models.get_model(name, **options), torch.empty(1, *sample_shape)


def _timm(timm: Any, name: str) -> tuple[torch.nn.Module, Any]:
    model = timm.create_model(name)
    return model, torch.empty(1, *model.pretrained_cfg["input_size"])


def _builtin(name: str) -> tuple[torch.nn.Module, Any]:
    from autofit_workers.spec.protocol import WorkloadRef
    from autofit_workers.workload.workload import resolve

    workload = resolve(WorkloadRef(kind="builtin", target=name))
    model = workload.build_model()
    batch = workload.make_batch(2, torch.device("meta"))
    return _Step(model, workload.loss), (batch,)


class _Step(torch.nn.Module):
    """A model with the loss of its workload, which knows how to call it."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._model = model
        self._loss = loss

    def forward(self, batch: Any) -> Any:
        return self._loss(self._model, batch)


def _unet() -> torch.nn.Module:
    """The convolutions of a U-Net (Ronneberger et al. 2015), one after the other without its copies."""
    layers: list[torch.nn.Module] = []
    widths = (3, 64, 128, 256, 512, 1024)
    for wide_in, wide_out in itertools.pairwise(widths):
        layers += [torch.nn.Conv2d(wide_in, wide_out, 3, padding=1)]
        layers += [torch.nn.Conv2d(wide_out, wide_out, 3, padding=1), torch.nn.MaxPool2d(2)]
    for width in (1024, 512, 256, 128):
        half = width // 2
        layers += [torch.nn.ConvTranspose2d(width, half, 2, stride=2)]
        layers += [torch.nn.Conv2d(half, width, 3, padding=1), torch.nn.Conv2d(width, half, 3, padding=1)]
    return torch.nn.Sequential(*layers)


def _grid() -> Iterator[Geometry]:
    """Square convolutions at round sizes, between those of the models."""
    for channels in (16, 32, 64, 128, 256, 512, 1024, 2048):
        for side in (7, 14, 28, 56, 112, 224):
            if channels * side * side not in _MAP_ELEMENTS:
                continue
            for width, stride in ((1, 1), (1, 2), (3, 1), (3, 2)):
                for ratio in (0.25, 0.5, 1, 2, 4):
                    yield _square("grid", channels, int(channels * ratio), side, width, stride)


def _uneven() -> Iterator[Geometry]:
    """Square convolutions whose channels or filters fill no whole vectors, which few models have.

    Their numbers are a factor of about 1.4 apart. Beside each stands one that fills its vectors, of up to
    eight channels, so that inputs and outputs are uneven together and each alone; and the first layers
    of images.
    """
    numbers = (10, 15, 22, 31, 45, 62, 93, 130, 189, 270, 385, 550, 783, 1110, 1591)
    pairs = []
    for number in numbers:
        even, larger = -(-number // 8) * 8, round(1.2 * number) | 1
        pairs += [(number, number), (number, larger), (larger, number), (number, even), (even, number)]
    pairs += [(channels, number) for channels in (1, 3) for number in numbers if 31 <= number <= 550]
    for width in (1, 3):  # outermost, so that every second geometry is of either
        for channels, filters in pairs:
            for side in (9, 28, 88):
                if max(channels, filters) * side * side in _MAP_ELEMENTS:
                    yield _square("uneven", channels, filters, side, width)


def _square(  # noqa: PLR0917 - the numbers of a convolution
    family: str, channels: int, filters: int, side: int, width: int, stride: int = 1
) -> Geometry:
    out_side = -(-side // stride)
    return Geometry(
        family=family,
        input_shape=(channels, side, side),
        weight_shape=(filters, channels, width, width),
        output_shape=(filters, out_side, out_side),
        stride=(stride, stride),
        padding=(width // 2, width // 2),
        dilation=(1, 1),
        groups=1,
    )


def _evenly(items: list[Any], count: int) -> list[Any]:
    """At most so many items, spread evenly over the list."""
    return items if len(items) <= count else [items[i * len(items) // count] for i in range(count)]


def _size(geometry: Geometry) -> tuple[int, ...]:
    shapes = (geometry.weight_shape[2:], geometry.output_shape, geometry.input_shape)
    return tuple(map(math.prod, shapes))


def main() -> None:
    """Gathers, thins out and writes the shapes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--per-family", type=int, default=40)
    parser.add_argument("--family", action="append", help="repeatable, `grid` is one; default: all")
    parser.add_argument("--out", type=Path, default=SHAPES_PATH, help="the file that is written")
    options = parser.parse_args()
    by_family: dict[str, list[Geometry]] = {}
    if "grid" in (options.family or ["grid"]):
        by_family["grid"] = list(_grid())
    known: set[tuple[Any, ...]] = set()
    for family, name, build in _models():
        if family not in (options.family or [family]):
            continue
        try:
            found = _geometries(family, build)
        except Exception as error:  # noqa: BLE001 - whatever a model has against the meta device
            print(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0][:100]}")
            continue
        for geometry in found:
            key = (geometry.input_shape, geometry.weight_shape, geometry.output_shape, geometry.stride)
            if (key, geometry.groups) not in known:
                known.add((key, geometry.groups))
                by_family.setdefault(family, []).append(geometry)
    kept = []
    for family, geometries in sorted(by_family.items()):
        factor = 3 if family in (*ACCEPTANCE_FAMILIES, "grid") else 1
        few = _evenly(sorted(geometries, key=_size), factor * options.per_family)
        print(f"{family}: {len(few)} of {len(geometries)}")
        kept += few
    rows = [
        [g.family, g.input_shape, g.weight_shape, g.output_shape, g.stride, g.padding, g.dilation, g.groups]
        for g in kept
    ]
    text = json.dumps(rows, separators=(",", ":")).encode()
    options.out.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))
    print(f"{len(kept)} geometries, {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
