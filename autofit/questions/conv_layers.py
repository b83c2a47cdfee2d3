"""Workspace of each convolution algorithm for a model's layers, for `autofit conv-algos --model`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from autofit.events import EventSink, ignore
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor, local_predictor
from autofit_workers.replay.curve.mixed_convolutions import layer_of
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.spans import Workspace, between, certain
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import ConvPolicy, Rewrite
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Device, WorkloadRef
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import Category, Trace
from autofit_workers.spec.work import Convolution
from autofit_workers.trials import door

_OPERATORS = ("aten.convolution", "aten.convolution_backward")
# Function that returns the workspace of an algorithm, by name, for a layer and the modules that run it.
_Taken = Callable[[str, Convolution, tuple[str, ...]], Workspace]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWorkspace:
    """Scratch memory (workspace) of one convolution algorithm for a layer, in the pass that needs the most.

    Attributes:
        low_bytes, likely_bytes, high_bytes: bytes; they differ if it is not known for sure which kernel cuDNN
            chooses.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int

    @classmethod
    def of(cls, span: Workspace) -> LayerWorkspace:
        return cls(low_bytes=span.low_bytes, likely_bytes=span.likely_bytes, high_bytes=span.high_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvLayer:
    """Convolution layers of one shape, with the workspace of each algorithm that can run them.

    Attributes:
        call: the forward convolution, with its shapes.
        modules: names of the modules that run it.
        workspaces: workspace of each algorithm that applies.
        reasons: for each other algorithm, by name, the reason why it cannot run these layers.
    """

    call: Convolution
    modules: tuple[str, ...]
    workspaces: dict[str, LayerWorkspace]
    reasons: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        call = dataclasses.asdict(self.call)
        del call["conv_pass"]
        return {**call, **{key: value for key, value in dataclasses.asdict(self).items() if key != "call"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvLayers:
    """Convolution layers of a model's step, with the algorithms that apply to each.

    Attributes:
        device: device of the prediction.
        names: names of the algorithms, in their usual order.
        layers: layers in the order of their first run.
    """

    workload: str
    batch_size: int
    mode: str
    device: Device
    names: tuple[str, ...]
    layers: tuple[ConvLayer, ...]

    @property
    def num_layers(self) -> int:
        return sum(len(layer.modules) for layer in self.layers)

    def num_applicable(self, name: str) -> int:
        """Number of layers that a convolution algorithm applies to."""
        return sum(len(layer.modules) for layer in self.layers if name in layer.workspaces)

    def reasons(self, name: str) -> dict[str, int]:
        """Reasons why a convolution algorithm leaves layers to the backend, with the number of layers."""
        counts: Counter[str] = Counter()
        for layer in self.layers:
            if name in layer.reasons:
                counts[layer.reasons[name]] += len(layer.modules)
        return dict(counts)

    def to_dict(self) -> dict[str, Any]:
        """Convolution layers as a dictionary of JSON's types."""
        return {
            "workload": self.workload,
            "batch_size": self.batch_size,
            "mode": self.mode,
            "device": dataclasses.asdict(self.device),
            "num_layers": self.num_layers,
            "conv_algos": [
                {
                    **dataclasses.asdict(conv.find(name)),
                    "num_layers": self.num_applicable(name),
                    "reasons": self.reasons(name),
                }
                for name in self.names
            ],
            "layers": [layer.to_dict() for layer in self.layers],
        }


def why_not(name: str, call: Convolution) -> str | None:
    """Reason why a convolution algorithm cannot run a layer, which PyTorch's backend then runs; else None."""
    algorithm = conv.find(name)
    return algorithm.leaves(call) if isinstance(algorithm, Rewrite) else None


def find_conv_layers(
    workload: WorkloadRef,
    *,
    batch_size: int,
    card: Card | None,
    setup: Setup = ALONE,
    emit: EventSink = ignore,
) -> ConvLayers:
    """Convolution layers of a workload's step, with the workspace of each algorithm.

    Args:
        card: card of the prediction; None for the CPU.
        setup: the mode (training or inference), and what the model's code may do.

    Raises:
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    kind = "cpu" if card is None else GPU_KIND
    names = tuple(n for n in conv.applicable(kind) if isinstance(conv.find(n), ConvPolicy | Rewrite))
    predictor = local_predictor(workload, setup=setup, emit=emit)
    trace = predictor.trace(Knobs(), batch_size)
    if card is None:
        on_host = dataclasses.replace(setup, mode=trace.mode)
        host = Predictor(workload, door.run, setup=on_host, emit=emit, for_host=True)
        taken = _on_host(host, trace)
    else:
        taken = _on_card(predictor, trace, card, names)
    return ConvLayers(
        workload=trace.workload,
        batch_size=batch_size,
        mode=trace.mode,
        device=Device(kind=kind, name=HOST_ARCHITECTURE if card is None else card.name),
        names=names,
        layers=tuple(
            _layer(call, modules, names, taken)
            for call, modules in PeakCurve.through([trace]).at(batch_size).convolution_modules().items()
        ),
    )


def _layer(call: Convolution, modules: tuple[str, ...], names: Iterable[str], taken: _Taken) -> ConvLayer:
    reasons = {name: reason for name in names if (reason := why_not(name, call)) is not None}
    return ConvLayer(
        call=call,
        modules=modules,
        workspaces={
            name: LayerWorkspace.of(taken(name, call, modules)) for name in names if name not in reasons
        },
        reasons=reasons,
    )


def _on_card(predictor: Predictor, trace: Trace, card: Card, names: tuple[str, ...]) -> _Taken:
    options = predictor.curve_of(trace, trace.knobs, card).convolution_options(trace.batch_size, names)

    def taken(name: str, call: Convolution, _modules: tuple[str, ...]) -> Workspace:
        (option,) = (option for option in options[call] if option.algorithm == name)
        return _largest(option.spans.values())

    return taken


def _on_host(host: Predictor, trace: Trace) -> _Taken:
    """Function that returns the workspace of an algorithm in a layer on the CPU, traced on demand."""
    calls = dict.fromkeys(a.convolution for a in trace.allocations if a.convolution is not None)
    known: dict[str, dict[str, Workspace]] = {}

    def taken(name: str, call: Convolution, modules: tuple[str, ...]) -> Workspace:
        algorithm = conv.find(name)
        if isinstance(algorithm, Rewrite) and algorithm.handed_on(call) is None:
            return _largest(certain(algorithm.own_bytes(each)) for each in calls if layer_of(each) == call)
        if name not in known:
            known[name] = _by_module(host.trace(Knobs(conv_algo=name), trace.batch_size))
        return _largest(known[name].get(module, certain(0)) for module in modules)

    return taken


def _by_module(trace: Trace) -> dict[str, Workspace]:
    """Largest workspace that is alive at any moment within each module's convolutions, by module name."""
    alive: dict[str, tuple[int, int, int]] = {}
    most: dict[str, tuple[int, int, int]] = {}
    for event in trace.events:
        allocation = trace.allocations[event if event >= 0 else ~event]
        if allocation.category is not Category.WORKSPACE or allocation.operator not in _OPERATORS:
            continue
        low, high = allocation.span_bytes or (allocation.num_bytes, allocation.num_bytes)
        sign = 1 if event >= 0 else -1
        before = alive.get(allocation.module, (0, 0, 0))
        now = before[0] + sign * low, before[1] + sign * allocation.num_bytes, before[2] + sign * high
        alive[allocation.module] = now
        most[allocation.module] = max(now, most.get(allocation.module, now), key=lambda sizes: sizes[1])
    return {module: between(*sizes) for module, sizes in most.items()}


def _largest(spans: Iterable[Workspace]) -> Workspace:
    return max(spans, key=lambda span: span.likely_bytes)
