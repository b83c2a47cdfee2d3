"""Lays out a model's convolution layers, and the algorithms that apply to each, as sections of tables."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.section import Paragraph, Section, grid, left, quiet, right, table
from autofit.questions.conv_layers import ConvLayer, ConvLayers, LayerWorkspace
from autofit.units import format_bytes
from autofit_workers.spec.work import Convolution

_NUM_NAMES = 4


def conv_layers_sections(found: ConvLayers) -> Iterator[Section]:
    """Yields tables of convolution algorithms: how many layers each applies to, and its workspace in each."""
    kind = "CPU" if found.device.kind == "cpu" else found.device.name
    said = f"{found.workload} at batch {found.batch_size} · {found.mode} · {kind}, predicted"
    yield Section(name="configuration", blocks=(Paragraph(said, "strong", (found.workload,)),))
    if not found.layers:
        yield Section(name="layers", blocks=(Paragraph("The model has no convolution."),))
        return
    columns = (left("--conv-algo"), right("layers"), left("why not the other layers"))
    rows = ((name, _applicable(found, name), quiet(_reasons(found, name))) for name in found.names)
    applicable = table(columns, rows, fit="listed")
    yield Section(
        name="applicable",
        title="Layers that each algorithm applies to",
        blocks=(applicable,),
        is_leading=True,
    )
    title = "Memory besides each layer's output, in the pass that takes most"
    yield Section(name="workspaces", title=title, blocks=())
    for number, layer in enumerate(found.layers):
        ordered = sorted(layer.workspaces.items(), key=lambda pair: pair[1].likely_bytes)
        sizes = grid(
            "<><",
            ((f"  {name}", format_bytes(each.likely_bytes), quiet(_span(each))) for name, each in ordered),
        )
        named = Paragraph(f"{_named(layer)}: {_described(layer.call)}", is_whole=True)
        yield Section(name=f"layer-{number}", blocks=(named, sizes))


def _applicable(found: ConvLayers, name: str) -> str:
    return f"{found.num_applicable(name)} of {found.num_layers}"


def _reasons(found: ConvLayers, name: str) -> str:
    return "; ".join(f"{count}: {why}" for why, count in found.reasons(name).items())


def _span(workspace: LayerWorkspace) -> str:
    if workspace.low_bytes == workspace.high_bytes:
        return ""
    return f"likely; {format_bytes(workspace.low_bytes)} to {format_bytes(workspace.high_bytes)}"


def _named(layer: ConvLayer) -> str:
    names = [name or "the model itself" for name in layer.modules]
    shown = ", ".join(names[:_NUM_NAMES]) + (", …" if len(names) > _NUM_NAMES else "")
    return shown if len(names) == 1 else f"{len(names)} × {shown}"


def _described(call: Convolution) -> str:
    return ", ".join(_parts(call))


def _parts(call: Convolution) -> Iterator[str]:
    """Yields texts on a convolution: its shapes, its filter, and settings other than the usual ones."""
    ends = (call.output_shape, call.input_shape) if call.transposed else (call.input_shape, call.output_shape)
    yield " → ".join("×".join(map(str, shape)) for shape in ends)
    yield f"{'transposed ' * call.transposed}filter {'×'.join(map(str, call.weight_shape[2:]))}"
    for name, values, usual in (
        ("stride", call.stride, 1),
        ("padding", call.padding, 0),
        ("dilation", call.dilation, 1),
    ):
        if set(values) != {usual}:
            yield f"{name} {values[0] if len(set(values)) == 1 else '×'.join(map(str, values))}"
    if call.groups > 1:
        yield f"{call.groups} groups"
