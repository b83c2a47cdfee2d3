"""The text of a model's convolution layers."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from autofit.cli.text.output import headed, heading, indented, listing, styled
from autofit.questions.conv_layers import ConvLayer, ConvLayers, LayerWorkspace
from autofit.units import format_bytes
from autofit_workers.spec.work import Convolution

_NUM_NAMES = 4


def print_conv_layers(found: ConvLayers) -> None:
    """Prints the layers that each algorithm applies to, and each layer's workspace with each algorithm."""
    console = listing()
    kind = "CPU" if found.device.kind == "cpu" else found.device.name
    console.print(
        styled(found.workload, "bold"), f"at batch {found.batch_size} · {found.mode} · {kind}, predicted"
    )
    console.print()
    if not found.layers:
        console.print("The model has no convolution.")
        return
    console.print(indented(_applicable(found)))
    heading(console, "Memory besides each layer's output, in the pass that takes most")
    for layer in found.layers:
        console.print()
        console.print(f"  {_named(layer)}: {_described(layer.call)}", soft_wrap=True)
        console.print(indented(_workspaces(layer)))


def _applicable(found: ConvLayers) -> Table:
    table = headed(("--conv-algo", "left"), ("layers", "right"), ("why not the other layers", "left"))
    for name in found.names:
        reasons = "; ".join(f"{count}: {why}" for why, count in found.reasons(name).items())
        table.add_row(name, f"{found.num_applicable(name)} of {found.num_layers}", styled(reasons, "dim"))
    return table


def _workspaces(layer: ConvLayer) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    ordered = sorted(layer.workspaces.items(), key=lambda pair: pair[1].likely_bytes)
    for name, workspace in ordered:
        table.add_row(f"  {name}", format_bytes(workspace.likely_bytes), styled(_span(workspace), "dim"))
    return table


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
