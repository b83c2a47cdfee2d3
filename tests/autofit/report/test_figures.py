"""Figures of a report: which numbers, units, names and marks they show, of data made by hand."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest

from autofit.answers.figures import CurveLine, MeasuredPoint, SizeMap
from autofit.explain.profile import Phase
from autofit.explain.views.timeline import Lane, Moment
from autofit.explain.views.workspaces import LayerWorkspaces
from autofit.questions.what_if import LeverResult, WhatIf
from autofit.report.html import figures
from autofit_workers.spec.trace import Category
from autofit_workers.spec.work import ConvPass

MIB, GIB = 1024**2, 1024**3
FORWARD = Phase(step=2, name="forward", start=10, stop=60)
BACKWARD = Phase(step=2, name="backward", start=60, stop=107)
OPTIMIZER = Phase(step=2, name="optimizer", start=107, stop=120)


def shown(figure):
    """The figure, once plotly has accepted it: it refuses names and values that plotly.js would not know."""
    go.Figure(json.loads(re.sub(r'"var:[a-z]+"', '"#123456"', json.dumps(figure))))
    return figure


def moment(position: int, phase: Phase, reserved_mib: int, **categories_mib: int) -> Moment:
    categories = {Category[name.upper()]: size * MIB for name, size in categories_mib.items()}
    return Moment(
        position=position,
        phase=phase,
        allocated_bytes=sum(categories.values()),
        reserved_bytes=reserved_mib * MIB,
        categories=categories,
    )


MOMENTS = (
    moment(10, FORWARD, 200, parameter=100, activation=0, gradient=0),
    moment(50, FORWARD, 400, parameter=100, activation=250, gradient=0),
    moment(70, BACKWARD, 600, parameter=100, activation=350, gradient=50),
    moment(110, OPTIMIZER, 600, parameter=100, activation=0, gradient=100),
)


def step(budget_bytes: int | None = None, *, peak: int = 2, scale: int = 1):
    """The figure of a step by hand, with the peak at one of its moments and `scale` times as many bytes."""
    moments = [
        Moment(
            position=each.position,
            phase=each.phase,
            allocated_bytes=scale * each.allocated_bytes,
            reserved_bytes=scale * each.reserved_bytes,
            categories={name: scale * size for name, size in each.categories.items()},
        )
        for each in MOMENTS
    ]
    lane = Lane(
        device="cuda:0",
        peak=moments[peak],
        peak_reserved_bytes=scale * 600 * MIB,
        phase_peaks=(),
        moments=tuple(moments),
    )
    return shown(figures.memory_over_step(lane, budget_bytes))


def texts(figure) -> list[str]:
    return [note["text"] for note in figure["layout"]["annotations"]]


# ── memory over a step ──────────────────────────────────────────────────────────────────────────


def test_each_category_that_is_ever_alive_is_an_area_of_its_mebibytes_at_each_moment() -> None:
    *areas, reserved = step()["data"]
    assert {area["name"]: area["y"] for area in areas} == {
        "parameters": [100, 100, 100, 100],
        "gradients": [0, 0, 50, 100],
        "activations": [0, 250, 350, 0],
    }
    assert (reserved["name"], reserved["y"]) == ("reserved", [200, 400, 600, 600])
    for trace in (*areas, reserved):
        assert trace["x"] == [10, 50, 70, 110]
        assert (trace["mode"], trace["line"]["shape"]) == ("lines", "hv")  # bytes change at events alone
        assert trace["hovertemplate"] == "%{y:.2f} MiB"


def test_areas_lie_on_each_other_and_the_reserved_line_does_not() -> None:
    figure = step()
    *areas, reserved = figure["data"]
    assert len({area["stackgroup"] for area in areas}) == 1
    assert "stackgroup" not in reserved
    assert figure["layout"]["legend"]["traceorder"] == "normal"
    assert figure["layout"]["hovermode"] == "x unified"


def test_a_patterned_area_keeps_its_colour_under_thin_marks() -> None:
    *areas, reserved = step()["data"]
    for area in areas:
        assert area["fillcolor"] == area["line"]["color"]
        pattern = area["fillpattern"]
        assert (pattern["fillmode"], pattern["fgcolor"]) == ("overlay", "var:panel")
        assert 0 < pattern["solidity"] < 0.5
        assert 0 < area["line"]["width"] < 1 < reserved["line"]["width"]
    assert (reserved["line"]["dash"], reserved["line"]["color"]) == ("dot", "var:ink")


def test_a_step_of_gibibytes_is_drawn_in_gibibytes() -> None:
    figure = step(scale=1024)
    assert figure["layout"]["yaxis"]["title"]["text"] == "GiB"
    assert figure["data"][-1]["y"] == [200, 400, 600, 600]
    assert {trace["hovertemplate"] for trace in figure["data"]} == {"%{y:.2f} GiB"}
    assert step()["layout"]["yaxis"]["title"]["text"] == "MiB"
    layout = step()["layout"]
    assert layout["xaxis"]["title"]["text"] == "allocator events, in order"
    assert layout["xaxis"]["zeroline"] is layout["yaxis"]["zeroline"] is False  # no edge of anything


def test_values_are_rounded_to_what_can_be_seen() -> None:
    lane = Lane(
        device="cuda:0",
        peak=MOMENTS[0],
        peak_reserved_bytes=GIB,
        phase_peaks=(),
        moments=(moment(10, FORWARD, 1024, parameter=100), moment(20, FORWARD, 100, parameter=1)),
    )
    parameters, reserved = figures.memory_over_step(lane, None)["data"]
    assert parameters["y"] == [0.0977, 0.001]
    assert reserved["y"] == [1, 0.0977]


@pytest.mark.parametrize(("peak", "shift"), [(0, 70), (2, -70), (3, -70)])
def test_the_peak_is_pointed_at_from_the_side_where_there_is_room(peak: int, shift: int) -> None:
    (note,) = [note for note in step(peak=peak)["layout"]["annotations"] if "peak" in note["text"]]
    at = MOMENTS[peak]
    assert (note["x"], note["y"]) == (at.position, at.allocated_bytes / MIB)
    assert note["text"] == (
        f"<b>peak: {at.allocated_bytes // MIB}.00 MiB allocated</b><br>{at.phase.name} of step 2"
    )
    assert note["showarrow"]
    assert note["ax"] == shift
    assert note["ay"] < 0  # above it
    assert (note["bgcolor"], note["bordercolor"]) == ("var:panel", "var:ink")


def test_a_peak_in_the_very_middle_is_pointed_at_from_the_right() -> None:
    moments = tuple(moment(position, FORWARD, 200, parameter=100) for position in (10, 20, 30))
    shifts = []
    for peak in moments:
        lane = Lane(
            device="cuda:0", peak=peak, peak_reserved_bytes=200 * MIB, phase_peaks=(), moments=moments
        )
        shifts.append(figures.memory_over_step(lane, None)["layout"]["annotations"][-1]["ax"])
    assert shifts == [70, 70, -70]


def test_a_phase_begins_with_a_line_through_the_whole_figure_but_the_first() -> None:
    lines = step()["layout"]["shapes"]
    assert [(line["x0"], line["x1"]) for line in lines] == [(60, 60), (107, 107)]
    for line in lines:
        assert (line["type"], line["y0"], line["y1"], line["yref"]) == ("line", 0, 1, "paper")
        assert line["line"]["dash"] == "dot"
        assert line["line"]["color"] == "var:muted"


def test_phases_have_their_names_over_their_middle_where_they_are_wide_enough() -> None:
    names = [note for note in step()["layout"]["annotations"] if "peak" not in note["text"]]
    assert [(note["text"], note["x"]) for note in names] == [("forward", 35), ("backward", 83.5)]
    for note in names:
        assert (note["y"], note["yref"], note["yanchor"]) == (1, "paper", "bottom")
        assert not note["showarrow"]
        assert note["font"]["color"] == "var:muted"


def test_a_phase_is_wide_enough_by_its_share_of_the_step_wherever_that_begins() -> None:
    early = Phase(step=9, name="forward", start=1000, stop=1095)
    late = Phase(step=9, name="backward", start=1095, stop=1100)
    moments = tuple(
        moment(at, phase, 200, parameter=100) for at, phase in ((1000, early), (1094, early), (1100, late))
    )
    lane = Lane(
        device="cuda:0", peak=moments[0], peak_reserved_bytes=200 * MIB, phase_peaks=(), moments=moments
    )
    assert texts(figures.memory_over_step(lane, None))[:2] == ["forward", "backward"]


def test_the_axis_of_a_step_ends_above_the_reserved_peak_or_the_budget() -> None:
    assert step()["layout"]["yaxis"]["range"] == [0, pytest.approx(1.15 * 600)]
    assert step(800 * MIB)["layout"]["yaxis"]["range"] == [0, pytest.approx(1.15 * 800)]
    assert step(400 * MIB)["layout"]["yaxis"]["range"] == [0, pytest.approx(1.15 * 600)]
    far = step(1501 * MIB)
    assert far["layout"]["yaxis"]["range"] == [0, pytest.approx(1.15 * 600)]
    assert texts(far)[-1] == "↑ usable: 1.47 GiB, far above"
    assert all(shape["line"]["dash"] == "dot" for shape in far["layout"]["shapes"])
    assert texts(step(1500 * MIB))[-1] == "<b>usable: 1.46 GiB</b>"
    assert not any("usable" in text for text in texts(step()))


def test_the_budget_is_a_line_through_the_whole_figure_with_its_label_on_it() -> None:
    figure = step(800 * MIB)
    *_, line = figure["layout"]["shapes"]
    *_, note = figure["layout"]["annotations"]
    assert (line["type"], line["x0"], line["x1"], line["xref"]) == ("line", 0, 1, "paper")
    assert line["y0"] == line["y1"] == note["y"] == 800
    assert "yref" not in line
    assert (line["line"]["dash"], line["line"]["color"]) == ("longdash", "var:alarm")
    assert line["line"]["width"] > max(trace["line"]["width"] for trace in figure["data"])
    assert (note["x"], note["xref"], note["xanchor"], note["yanchor"]) == (0, "paper", "left", "bottom")
    assert (note["showarrow"], note["bgcolor"]) == (False, "var:panel")
    assert note["font"]["color"] == "var:alarm"
    told = step(9000 * MIB)["layout"]["annotations"][-1]
    assert (told["y"], told["yref"], told["yanchor"]) == (1, "paper", "top")
    assert (told["x"], told["xref"], told["xanchor"], told["showarrow"]) == (0, "paper", "left", False)


# ── peaks over the batch size ───────────────────────────────────────────────────────────────────

CUDNN = CurveLine(
    label="cudnn",
    batch_sizes=(1, 2, 3),
    peaks_bytes=(GIB, 2 * GIB, 4 * GIB),
    largest_batch=2,
    first_failing_batch=3,
)
NATIVE = CurveLine(label="native", batch_sizes=(1, 2), peaks_bytes=(GIB // 2, 3 * GIB))
POINTS = (
    MeasuredPoint(label="native", batch_size=2, peak_bytes=3 * GIB, verdict="FITS"),
    MeasuredPoint(label="im2col", batch_size=1, peak_bytes=GIB, verdict="OOM"),
    MeasuredPoint(label="native", batch_size=1, peak_bytes=GIB // 2, verdict="FITS TOO"),
)


def over_batches(budget_bytes: int | None = 3 * GIB):
    return shown(figures.peak_against_batch([CUDNN, NATIVE], POINTS, budget_bytes))


def named(figure):
    return {trace["name"]: trace for trace in figure["data"]}


def test_a_setting_is_a_line_of_its_peaks_named_with_its_largest_batch() -> None:
    found = named(over_batches())
    assert list(found) == [
        "cudnn: 2", "native", "cudnn: fits", "cudnn: does not fit", "native, measured", "im2col, measured"
    ]  # fmt: skip
    cudnn, native = found["cudnn: 2"], found["native"]
    assert (cudnn["x"], cudnn["y"]) == ([1, 2, 3], [1, 2, 4])
    assert (native["x"], native["y"]) == ([1, 2], [0.5, 3])
    assert cudnn["hovertemplate"] == "cudnn: batch %{x}, %{y:.2f} GiB<extra></extra>"
    assert cudnn["mode"] == native["mode"] == "lines"
    # Where lines coincide, the dashes of one are seen on the other.
    assert (cudnn["line"]["dash"], native["line"]["dash"]) == ("solid", "dash")
    assert cudnn["line"]["width"] > native["line"]["width"] > 1


def test_the_boundary_is_a_mark_that_fits_and_a_cross_that_does_not() -> None:
    found = named(over_batches())
    fits, fails = found["cudnn: fits"], found["cudnn: does not fit"]
    assert (fits["x"], fits["y"]) == ([2], [2])
    assert (fails["x"], fails["y"]) == ([3], [4])
    assert (fits["marker"]["symbol"], fails["marker"]["symbol"]) == ("circle", "x-thin")
    assert fits["hovertemplate"] == "cudnn: batch %{x} fits, %{y:.2f} GiB<extra></extra>"
    for mark in (fits, fails):
        assert (mark["mode"], mark["showlegend"]) == ("markers", False)  # its line stands in the legend
        color = found["cudnn: 2"]["line"]["color"]
        assert mark["marker"]["color"] == mark["marker"]["line"]["color"] == color
        assert mark["marker"]["line"]["width"] > 1  # else a thin cross is not seen


def test_a_boundary_that_is_not_on_the_line_is_not_marked() -> None:
    line = CurveLine(
        label="a", batch_sizes=(1, 3), peaks_bytes=(1, 3), largest_batch=2, first_failing_batch=3
    )
    assert list(named(figures.peak_against_batch([line], [], None))) == ["a: 2", "a: does not fit"]


def test_trials_are_open_marks_in_the_style_of_their_setting_with_how_they_ended() -> None:
    found = named(over_batches())
    native, other = found["native, measured"], found["im2col, measured"]
    assert (native["x"], native["y"], native["text"]) == ([2, 1], [3, 0.5], ["FITS", "FITS TOO"])
    assert (other["x"], other["y"], other["text"]) == ([1], [1], ["OOM"])
    assert native["marker"]["color"] == found["native"]["line"]["color"]
    assert (native["marker"]["symbol"], other["marker"]["symbol"]) == ("square-open", "diamond-open")
    assert other["marker"]["color"] not in {
        line["line"]["color"] for line in found.values() if "line" in line
    }
    assert native["mode"] == "markers"
    assert native["hovertemplate"] == ("native, measured: batch %{x}, %{y:.2f} GiB, %{text}<extra></extra>")
    assert native["marker"]["size"] > found["cudnn: fits"]["marker"]["size"]  # so that it shows around that
    assert native["marker"]["line"]["width"] > 1


def test_the_axes_of_peaks_over_batches_begin_at_zero_in_the_unit_of_the_largest() -> None:
    layout = over_batches()["layout"]
    assert layout["xaxis"]["title"]["text"] == "batch size"
    assert layout["yaxis"]["title"]["text"] == "reserved peak, GiB"
    assert layout["xaxis"]["rangemode"] == layout["yaxis"]["rangemode"] == "tozero"
    assert layout["xaxis"]["zeroline"] is layout["yaxis"]["zeroline"] is False
    assert layout["hovermode"] == "closest"
    small = CurveLine(label="a", batch_sizes=(1,), peaks_bytes=(GIB - MIB,))
    in_mebibytes = figures.peak_against_batch([small], [], None)
    assert in_mebibytes["layout"]["yaxis"]["title"]["text"] == "reserved peak, MiB"
    assert in_mebibytes["data"][0]["y"] == [1023]
    assert figures.peak_against_batch([small], [], GIB)["data"][0]["y"] == [0.999]
    assert figures.peak_against_batch([], POINTS[1:2], None)["data"][0]["y"] == [1]


def test_the_budget_is_drawn_up_to_four_times_the_largest_peak() -> None:
    near, far = over_batches(16 * GIB), over_batches(16 * GIB + 1)
    assert [shape["y0"] for shape in near["layout"]["shapes"]] == [16]
    assert texts(near) == ["<b>usable: 16.00 GiB</b>"]
    assert (far["layout"]["shapes"], texts(far)) == ([], ["↑ usable: 16.00 GiB, far above"])
    without = over_batches(None)["layout"]
    assert (without["shapes"], without["annotations"]) == ([], [])


def test_more_settings_than_styles_begin_again_with_the_first() -> None:
    lines = [
        CurveLine(label=f"setting {n}", batch_sizes=(1,), peaks_bytes=(n + 1,), largest_batch=1)
        for n in range(8)
    ]
    data = shown(figures.peak_against_batch(lines, [], None))["data"]
    styles = [trace["line"] for trace in data[:8]]
    symbols = [trace["marker"]["symbol"] for trace in data[8:]]
    assert len({(style["color"], style["dash"]) for style in styles}) == len(set(symbols)) == 7
    assert (styles[7], symbols[7]) == (styles[0], symbols[0])


# ── peaks by size ───────────────────────────────────────────────────────────────────────────────

SIZES = SizeMap(
    sizes=(128, 512, 2048),
    batch_sizes=(1, 4),
    peaks_bytes=((GIB, 2 * GIB, 4 * GIB), (2 * GIB, 4 * GIB, 12 * GIB)),
)


def test_a_map_has_a_row_for_each_batch_and_a_column_for_each_size() -> None:
    (peaks, *_) = shown(figures.peak_by_size(SIZES, None))["data"]
    assert (peaks["type"], peaks["x"], peaks["y"]) == ("contour", [128, 512, 2048], [1, 4])
    assert peaks["z"] == [[1, 2, 4], [2, 4, 12]]
    assert peaks["hovertemplate"] == "seq-len %{x}, batch %{y}: %{z:.2f} GiB<extra></extra>"
    assert peaks["colorbar"]["title"]["text"] == "GiB"
    assert peaks["reversescale"]  # dark is much
    assert peaks["contours"]["showlabels"]
    assert "zmax" not in peaks


def test_the_unit_of_a_map_is_that_of_its_largest_peak() -> None:
    found = SizeMap(sizes=(1, 2), batch_sizes=(1, 2), peaks_bytes=((MIB, 2 * MIB), (4 * MIB, 2 * GIB)))
    (peaks, *_) = figures.peak_by_size(found, None)["data"]
    assert peaks["colorbar"]["title"]["text"] == "GiB"
    assert peaks["z"] == [[0.001, 0.002], [0.004, 2]]


def test_the_axes_of_a_map_are_logarithmic_with_the_sizes_as_ticks() -> None:
    layout = figures.peak_by_size(SIZES, None)["layout"]
    across, up = layout["xaxis"], layout["yaxis"]
    assert (across["title"]["text"], up["title"]["text"]) == ("seq-len, the size of a sample", "batch size")
    assert across["type"] == up["type"] == "log"
    assert (across["tickvals"], across["ticktext"]) == ([128, 512, 2048], ["128", "512", "2,048"])
    assert across["range"] == pytest.approx([2.10721, 3.31133], abs=1e-5)
    assert up["range"] == pytest.approx([0, 0.60206], abs=1e-5)
    assert layout["hovermode"] == "closest"


def test_the_budget_is_an_edge_on_the_map_and_its_colours_reach_twice_as_far() -> None:
    peaks, edge, *_ = shown(figures.peak_by_size(SIZES, 5 * GIB))["data"]
    assert (peaks["zmin"], peaks["zmax"]) == (0, 10)
    levels = peaks["contours"]
    assert (levels["start"], levels["end"], levels["size"]) == (1, 10, 1)
    assert levels["showlabels"]
    assert edge["name"] == "usable: 5.00 GiB"
    assert (edge["x"], edge["y"], edge["z"]) == (peaks["x"], peaks["y"], peaks["z"])
    assert edge["contours"]["start"] == edge["contours"]["end"] == 5
    assert edge["contours"]["coloring"] == "none"
    assert (edge["showscale"], edge["showlegend"]) == (False, True)
    assert edge["line"]["color"] == "var:alarm"
    assert edge["line"]["width"] > peaks["line"]["width"] < 1


def test_equal_products_of_batch_and_size_are_lines_from_side_to_side_by_factors_of_four() -> None:
    lines = [line for line in shown(figures.peak_by_size(SIZES, None))["data"] if line["type"] == "scatter"]
    assert [line["name"] for line in lines] == ["512 a step", "2,048 a step"]  # 8,192 is the corner itself
    assert [line["y"] for line in lines] == [[4, 0.25], [16, 1]]
    for line in lines:
        assert line["x"] == [128, 2048]
        assert (line["mode"], line["showlegend"]) == ("lines", False)
        assert (line["line"]["dash"], line["line"]["color"]) == ("dot", "#000000")
        assert line["hovertemplate"] == f"{line['name']}<extra></extra>"


# ── bars ────────────────────────────────────────────────────────────────────────────────────────


def layer(module: str, **passes_mib: int) -> LayerWorkspaces:
    sizes = {ConvPass[name.upper()]: size * MIB for name, size in passes_mib.items()}
    return LayerWorkspaces(module=module, pass_bytes=sizes)


def test_a_layer_has_a_bar_for_each_pass_with_a_workspace() -> None:
    layers = [layer("body.conv", fprop=8, wgrad=2), layer("", wgrad=4), layer("none", fprop=0)]
    figure = shown(figures.workspace_bars(layers))
    found = named(figure)
    assert {name: bars["x"] for name, bars in found.items()} == {
        "forward": [8, 0],
        "gradient of the weight": [2, 4],
    }
    for name, bars in found.items():
        assert (bars["type"], bars["orientation"], bars["y"]) == ("bar", "h", ["body.conv", "(the model)"])
        assert bars["hovertemplate"] == f"%{{y}}, {name}: %{{x:.3f}} MiB<extra></extra>"
        pattern = bars["marker"]["pattern"]
        assert (pattern["fillmode"], pattern["fgcolor"]) == ("overlay", "var:panel")
        assert 0 < pattern["solidity"] < 0.5
    layout = figure["layout"]
    assert (layout["barmode"], layout["xaxis"]["title"]["text"]) == ("group", "workspace, MiB")
    assert layout["yaxis"]["autorange"] == "reversed"  # the first on top
    assert layout["yaxis"]["automargin"]
    assert (layout["xaxis"]["zeroline"], layout["xaxis"]["zerolinecolor"]) == (True, "var:ink")


def test_the_unit_of_bars_is_that_of_the_largest() -> None:
    (bars,) = figures.workspace_bars([layer("large", fprop=1024), layer("small", fprop=1)])["data"]
    assert bars["x"] == [1, 0.001]
    assert bars["hovertemplate"].endswith("%{x:.3f} GiB<extra></extra>")
    results = (lever_result("amp", 2 * GIB), lever_result("tf32", MIB))
    (saves,) = figures.lever_bars(WhatIf(base=None, results=results))["data"]
    assert saves["x"] == [2, 0.001]


def test_the_first_layers_are_shown_in_a_figure_as_high_as_they_need() -> None:
    def height(num_layers: int, **passes: int) -> int:
        layers = [layer(f"conv{n}", **passes) for n in range(num_layers)]
        return figures.workspace_bars(layers)["layout"]["height"]

    many = figures.workspace_bars([layer(f"conv{n}", dgrad=2048) for n in range(30)])
    (bars,) = many["data"]
    assert (len(bars["y"]), bars["y"][0], bars["y"][-1]) == (24, "conv0", "conv23")
    assert bars["x"][0] == 2  # GiB
    rows_pixels = height(20, fprop=1) - height(10, fprop=1)
    assert rows_pixels == 10 * 0.6 * 26
    assert height(20, fprop=1, wgrad=1) - height(10, fprop=1, wgrad=1) == 2 * rows_pixels
    assert height(1, fprop=1) == height(3, fprop=1) == height(0) == 130 + 2 * 26
    assert shown(figures.workspace_bars([]))["data"] == []


def lever_result(label: str, saved_bytes: int, *, applies: bool = True) -> LeverResult:
    lever = SimpleNamespace(label=label)
    return LeverResult(lever=lever, saved_bytes=saved_bytes, estimate=object() if applies else None)


def test_levers_have_bars_to_the_right_for_what_they_save_and_to_the_left_for_what_they_take() -> None:
    results = (
        lever_result("amp", 3 * MIB),
        lever_result("nothing", 0),
        lever_result("cudnn", -2 * MIB),
        lever_result("refused", 9 * GIB, applies=False),
    )
    figure = shown(figures.lever_bars(WhatIf(base=None, results=results)))
    saves, takes = figure["data"]
    assert (saves["name"], saves["y"], saves["x"]) == ("saves", ["amp", "cudnn"], [3, 0])
    assert (takes["name"], takes["y"], takes["x"]) == ("takes more", ["amp", "cudnn"], [0, -2])
    assert (saves["text"], takes["text"]) == (["3.00 MiB", ""], ["", "-2.00 MiB"])
    assert saves["marker"]["pattern"]["shape"] != takes["marker"]["pattern"]["shape"]
    assert saves["marker"]["color"] != takes["marker"]["color"]
    for bars in (saves, takes):
        assert (bars["textposition"], bars["cliponaxis"]) == ("auto", False)
    layout = figure["layout"]
    assert layout["barmode"] == "relative"
    assert layout["xaxis"]["title"]["text"] == "saved from the reserved peak, MiB"
    assert layout["height"] == 130 + 2 * 26


def test_levers_that_only_take_more_are_measured_by_the_most_that_they_take() -> None:
    results = tuple(lever_result(f"lever {n}", -n * GIB) for n in (1, 2, 3))
    figure = figures.lever_bars(WhatIf(base=None, results=results))
    (takes,) = figure["data"]
    assert (takes["name"], takes["x"]) == ("takes more", [-1, -2, -3])
    assert figure["layout"]["height"] == 130 + 3 * 26
    assert shown(figures.lever_bars(WhatIf(base=None, results=())))["data"] == []
