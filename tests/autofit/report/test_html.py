"""The report as a document: figures that plotly accepts, numbers that agree, nothing that it loads."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

import autofit
from autofit.answers.figures import CurveLine, Curves, MeasuredPoint, ModuleMemory, Node, Workspaces
from autofit.answers.section import Bullets, Code, Figure, Paragraph, Section, Table, left, table
from autofit.explain.views.timeline import timeline
from autofit.explain.views.workspaces import layer_workspaces
from autofit.hardware.card import card_named
from autofit.predict.predictor import local_predictor
from autofit.questions.advice import Advice, Combination
from autofit.questions.levers import Effect
from autofit.questions.what_if import what_if
from autofit.report import gather
from autofit.report.gather import report_on_estimate, report_on_profile, report_on_search
from autofit.report.html import figures
from autofit.report.html.page import Fact, Page, drawn, render
from autofit.search.choice import RecommendedBy
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer
from autofit.tuning.compared import ParallelAnswer
from autofit.tuning.found import Best, Recommended
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence
from tests.autofit.explain.toy import PROFILE, TIMED, UNSTATED
from tests.secret_urls import SECRET, SECRET_TEXTS, SECRET_URLS

SMALL = f"{Path(__file__).parents[1] / 'tiny_workloads.py'}:small"
GIB = 1024**3
ASKED = TuneSettings(model=SMALL, gpu_mem_bytes=6 * GIB)
BATCH = 3
KNOBS = Knobs(conv_algo="im2col")  # which takes a workspace for every layer


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def predictor(state):
    return local_predictor(refer(SMALL))


@pytest.fixture(scope="module")
def profile(predictor):
    return predictor.profile(KNOBS, card_named("t4"), BATCH)


@pytest.fixture(scope="module")
def estimated(predictor):
    """The report of a configuration with its levers."""
    card = card_named("t4")
    levers = what_if(predictor, KNOBS, card, BATCH)
    return report_on_estimate(
        levers.base, predictor, card, gpu=autofit.hardware.gpus.find_gpu("t4"), what_if=levers
    )


@pytest.fixture(scope="module")
def searched(predictor):
    """A search, and its report."""
    result = autofit.tune(SMALL, gpu_mem="6G", conv_algo="cudnn,native")
    return result, report_on_search(result, ASKED, predictor)


def section_of(page, name):
    return next(section for section in page.sections if section.name == name)


def names_of(page):
    return [section.name for section in page.sections]


def block_of(page, name, kind=Table):
    """The block of a kind in a section."""
    (block,) = (block for block in section_of(page, name).blocks if isinstance(block, kind))
    return block


def drawing_of(page, name):
    return block_of(page, name, Figure).drawing


def rows_of(page, name):
    """The texts of a section's table."""
    return [tuple(cell.text for cell in row.cells) for row in block_of(page, name).rows]


def notes_of(page):
    return block_of(page, "notes", Bullets).items


def test_plotly_accepts_every_figure(estimated, searched):
    found = {**drawn(searched[1]), **drawn(estimated)}
    assert found.keys() == {"curves", "step", "modules", "roofline", "time", "workspaces", "levers"}
    for figure in found.values():
        painted = json.loads(re.sub(r'"var:[a-z]+"', '"#123456"', json.dumps(figure)))
        go.Figure(painted)  # refuses what plotly.js would not understand


def test_ways_of_training_together_have_a_table_with_the_largest_global_batch_first(predictor, searched):
    result, _ = searched
    first = next(entry for entry in result.frontier if entry.largest_batch == result.best.batch_size)
    fits = dataclasses.replace(first, parallel="fsdp:2", samples_per_step=2 * result.best.batch_size)
    fails = dataclasses.replace(first, parallel="ddp:2", samples_per_step=None, largest_batch=None)
    found = {"num_ranks": 2, "budget": result.budget}
    parallels = (
        ParallelAnswer(parallel="tp:2", num_ranks=2, refused="the model has no plan"),
        ParallelAnswer(parallel="ddp:2", frontier=(fails,), **found),
        ParallelAnswer(parallel="fsdp:2", frontier=(fits,), **found),
    )
    content = report_on_search(dataclasses.replace(result, parallels=parallels), ASKED, predictor)
    rows = rows_of(content, "parallels")
    assert [(row[0].partition(" ")[0], *row[1:3]) for row in rows] == [
        ("fsdp:2", str(fits.samples_per_step), str(fits.largest_batch)),
        ("ddp:2", "none", "none"),
    ]
    assert "tp:2: the model has no plan" in str(section_of(content, "refused"))
    assert "parallels" not in names_of(searched[1])


def test_the_areas_of_the_step_end_at_the_peak_that_is_marked(estimated, profile):
    figure = drawn(estimated)["step"]
    *areas, reserved = figure["data"]
    highest = max(sum(column) for column in zip(*(area["y"] for area in areas), strict=True))
    unit = {"GiB": GIB, "MiB": 1024**2}[figure["layout"]["yaxis"]["title"]["text"]]
    assert highest == pytest.approx(profile.peak_allocated_bytes / unit, abs=0.001)
    assert max(reserved["y"]) == pytest.approx(profile.peak_reserved_bytes / unit, abs=0.001)
    assert any("peak: " in note["text"] for note in figure["layout"]["annotations"])


def test_areas_and_bars_are_told_apart_without_colour(estimated):
    found = drawn(estimated)
    areas = found["step"]["data"][:-1]
    patterns = [area["fillpattern"]["shape"] for area in areas]
    assert len(set(patterns)) == len(areas) > 3
    bars = found["workspaces"]["data"]
    assert len({bar["marker"]["pattern"]["shape"] for bar in bars}) == len(bars) > 1
    lines = [line["line"]["dash"] for line in found["curves"]["data"] if line["mode"] == "lines"]
    assert len(set(lines)) == len(lines) == 2


def test_the_modules_add_up_to_the_peak(estimated, profile):
    assert (
        sum(node.own_bytes for node in drawing_of(estimated, "modules").nodes) == profile.peak_allocated_bytes
    )
    (icicle,) = drawn(estimated)["modules"]["data"]
    by_parent = {}
    for parent, value in zip(icicle["parents"], icicle["values"], strict=True):
        by_parent[parent] = by_parent.get(parent, 0) + value
    assert by_parent[""] == by_parent["/"] == profile.peak_allocated_bytes
    totals = dict(zip(icicle["ids"], icicle["values"], strict=True))
    assert all(value <= totals.get(parent, value) for parent, value in by_parent.items())


def test_what_lies_in_memory_is_that_of_the_recommended_configuration_which_each_title_names(
    searched, predictor
):
    result, _ = searched
    knobs, smaller = Knobs(conv_algo="cudnn"), result.best.batch_size // 2
    estimate = predictor.curve(knobs, gather._card(result))(smaller)
    best = dataclasses.replace(result.best, knobs=Knobs(conv_algo="native"))
    of_best = {field.name: getattr(best, field.name) for field in dataclasses.fields(Best)}
    recommended = Recommended(
        **{**of_best, "knobs": knobs, "batch_size": smaller},
        by=RecommendedBy.DEFAULT_BACKEND,
        largest_batch=smaller,
        first_failing_batch=smaller + 1,
        reason="",
        estimate=estimate,
    )
    content = report_on_search(
        dataclasses.replace(result, best=best, recommended=recommended), ASKED, predictor
    )
    assert (
        sum(node.own_bytes for node in drawing_of(content, "modules").nodes) == estimate.peak_allocated_bytes
    )
    titles = {section.name: section.title for section in content.sections}
    for name in ("step", "memory", "modules", "workspaces"):
        assert f" at batch {smaller} with cudnn" in titles[name]
    assert {fact.name: fact.value for fact in content.facts}["batch size"] == str(smaller)


def test_a_script_s_search_is_titled_by_the_batch_that_the_script_is_called_with(searched, predictor):
    result, _ = searched
    batch = result.chosen.batch_size
    estimate = dataclasses.replace(result.estimate_of_chosen, batch_size=batch // 2, num_parts=2)
    recommended = result.recommended and dataclasses.replace(result.recommended, estimate=estimate)
    of_script = dataclasses.replace(result, estimate=estimate, recommended=recommended)
    content = report_on_search(of_script, ASKED, predictor)
    titles = {section.name: section.title for section in content.sections}
    for name in ("step", "memory", "modules"):
        assert f" at batch {batch} with" in titles[name]
    held = sum(node.own_bytes for node in drawing_of(content, "modules").nodes)
    assert held == result.estimate_of_chosen.peak_allocated_bytes


def test_an_estimate_of_a_script_is_drawn_at_the_batch_that_the_script_is_called_with(predictor):
    card = card_named("t4")
    whole = predictor.curve(KNOBS, card)(2 * BATCH)
    in_parts = dataclasses.replace(whole, batch_size=BATCH, num_parts=2)
    content = report_on_estimate(in_parts, predictor, card)
    held = sum(node.own_bytes for node in drawing_of(content, "modules").nodes)
    assert held == whole.peak_allocated_bytes


def test_a_measured_answer_notes_what_the_predictions_beside_it_assume(searched, predictor):
    result, _ = searched
    measured = {
        name: dataclasses.replace(found, evidence=Evidence.MEASURED)
        for name in ("best", "recommended")
        if (found := getattr(result, name)) is not None
    }
    content = report_on_search(dataclasses.replace(result, **measured), ASKED, predictor)
    assert result.estimate_of_chosen.calibration.note in notes_of(content)


def test_no_page_notes_a_sentence_twice(estimated, searched):
    for page in (estimated, searched[1]):
        noted = notes_of(page)
        assert sorted(set(noted)) == sorted(noted)


def test_workspaces_are_those_of_the_replay(estimated, profile):
    likely = max(
        size
        for allocation, size in zip(profile.trace.allocations, profile.requested_bytes, strict=True)
        if allocation.convolution is not None
    )
    layers = drawing_of(estimated, "workspaces").layers
    assert layers == layer_workspaces(profile)
    assert layers[0].largest_bytes == likely


def test_a_curve_shows_what_the_search_went_by(searched):
    result, content = searched
    by_algo = {entry.knobs.conv_algo: entry for entry in result.frontier}
    for line in drawing_of(content, "curves").lines:
        entry = by_algo[line.label.split(", ")[0]]
        assert (line.largest_batch, line.first_failing_batch) == (
            entry.largest_batch, entry.first_failing_batch
        )  # fmt: skip
        peaks = dict(zip(line.batch_sizes, line.peaks_bytes, strict=True))
        assert peaks[entry.largest_batch] <= result.budget.usable_bytes < peaks[entry.first_failing_batch]


def test_the_answer_stands_first_in_words(searched, estimated):
    result, content = searched
    assert f"fits at batch {result.best.batch_size} in 6.00 GiB" in content.answer[0]
    assert "is likely to reserve" in estimated.answer[0]
    assert estimated.answer[1].startswith("That fits the")
    page = render(content)
    assert page.index(content.answer[0]) < page.index("<h2>")


def test_the_page_is_one_file_of_a_few_megabytes_that_loads_nothing(searched):
    page = render(searched[1])
    assert len(page.encode()) <= 6 * 1000**2
    assert page.count("plotly.js v") == 1
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"https?://|<link|@import|url\(| src=", outside)


def sections_that_say(text):
    """Sections with a text in each place where one may stand."""
    line = CurveLine(label=text, batch_sizes=(1, 2), peaks_bytes=(GIB, 2 * GIB))
    point = MeasuredPoint(label=text, batch_size=2, peak_bytes=GIB, verdict=text)
    nodes = (Node(path="", own_bytes=5), Node(path=text, own_bytes=7))
    blocks = (table((left(text),), ((text,),)), Bullets((text,)), Code((text,)), Paragraph(text, "strong"))
    return (
        Section(name="frontier", title=text, blocks=blocks),
        Section(name="curves", title=text, blocks=(Figure(Curves(lines=(line,), measured=(point,))),)),
        Section(name="modules", title=text, blocks=(Figure(ModuleMemory(nodes=nodes)),)),
    )


def test_names_of_a_user_are_shown_and_not_obeyed():
    evil = "</script><script>alert(1)</script>"
    page = render(
        Page(
            title=evil,
            answer=(evil,),
            facts=(Fact(name=evil, value=evil, note=evil),),
            sections=sections_that_say(evil),
        )
    )
    assert "<script>alert" not in page
    (embedded,) = re.findall(r'id="figures">(.*?)</script>', page, flags=re.DOTALL)
    assert json.loads(embedded)["modules"]["data"][0]["ids"] == ["/", "/own", evil]


@pytest.mark.parametrize("secret", [*SECRET_URLS, *SECRET_TEXTS])
def test_secrets_and_controls_are_not_on_the_page(secret, searched):
    """Wherever others' words stand: names of workloads, settings and modules, errors, the end of a log."""
    layers = drawing_of(searched[1], "workspaces").layers
    said = f"OperationalError: cannot connect to {secret}\x1b[2J\x9b31m, a\u202eb; see the log"
    for text in (secret, said, f"$ train.py --storage {secret}\r\n{said}"):
        page = render(
            dataclasses.replace(
                searched[1],
                title=text,
                answer=(text, text),
                facts=(Fact(name=text, value=text, note=text),),
                sections=(
                    *sections_that_say(text),
                    Section(
                        name="workspaces",
                        blocks=(
                            Figure(
                                Workspaces(tuple(dataclasses.replace(each, module=text) for each in layers))
                            ),
                        ),
                    ),
                ),
                made=text,
            )
        )
        ours = page.replace(get_plotlyjs(), "")
        assert SECRET not in ours
        assert len(page) - len(ours) > 10**6
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", ours)
        (embedded,) = re.findall(r'id="figures">(.*?)</script>', ours, flags=re.DOTALL)
        assert SECRET not in json.dumps(json.loads(embedded))


def test_measured_points_are_marked_and_a_far_budget_is_told_instead_of_drawn():
    line = CurveLine(label="cudnn", batch_sizes=(1, 2), peaks_bytes=(GIB, 2 * GIB), largest_batch=2)
    point = MeasuredPoint(label="cudnn", batch_size=2, peak_bytes=2 * GIB, verdict="FITS")
    near = figures.peak_against_batch([line], [point], 3 * GIB)
    assert [trace["name"] for trace in near["data"]] == ["cudnn: 2", "cudnn: fits", "cudnn, measured"]
    assert near["data"][2]["marker"]["symbol"].endswith("-open")
    assert near["layout"]["shapes"][0]["y0"] == 3
    far = figures.peak_against_batch([line], [point], 300 * GIB)
    assert far["layout"]["shapes"] == []
    assert "far above" in far["layout"]["annotations"][0]["text"]


def test_a_step_under_its_budget_shows_the_line(profile):
    (lane,) = timeline(profile, step=2, num_moments=50)
    figure = figures.memory_over_step(lane, profile.peak_reserved_bytes)
    names = [note["text"] for note in figure["layout"]["annotations"]]
    assert {"forward", "backward"} <= set(names)
    assert any("usable: " in name for name in names)
    assert any(shape["line"]["dash"] == "longdash" for shape in figure["layout"]["shapes"])


def test_the_budget_of_a_rank_of_a_script_has_no_more_ranks_than_there_are(predictor):
    card = card_named("t4")
    of_script = dataclasses.replace(
        predictor.curve(KNOBS, card)(BATCH),
        parallel="script:16",
        num_ranks=16,
        rank=3,
        communicators=(16, 8, 2),
    )
    content = report_on_estimate(of_script, predictor, card, gpu=autofit.hardware.gpus.find_gpu("t4"))
    assert any("each of 16 ranks" in note for note in notes_of(content))
    assert any("the script's own precision and optimizer · rank 3 of 16" in str(f) for f in content.facts)


def test_the_page_of_an_estimate_has_the_epoch_and_the_phases_that_the_terminal_has(predictor):
    card = card_named("t4")
    estimate = predictor.curve(KNOBS, card)(BATCH)
    page = report_on_estimate(estimate, predictor, card, of_script=True, epoch_samples=1000)
    blocks = {section.name: section.blocks for section in page.sections}
    assert any("epoch" in str(block) for block in blocks["seconds"])
    (phases,) = blocks["phases"]
    assert len(phases.rows) == len(estimate.phases)
    assert not {"seconds", "phases"} & {
        section.name for section in report_on_estimate(estimate, predictor, card).sections
    }


def test_a_report_names_the_class_of_the_model_and_its_parameters(predictor, profile):
    named = predictor.curve(KNOBS, card_named("t4"))(BATCH)
    facts = report_on_estimate(named, predictor, card_named("t4")).facts
    assert facts[0] == report_on_profile(profile).facts[0]
    assert (facts[0].name, facts[0].value) == ("model", named.model_class)
    assert facts[0].note == f"{named.num_parameters:,} parameters"


def test_a_profile_has_a_page_of_its_own(profile):
    content = report_on_profile(profile)
    assert "in the backward of step 2" in content.answer[0]
    assert drawn(content).keys() == {"step", "modules", "roofline", "time", "workspaces"}
    rows = block_of(content, "memory").rows
    allocated = next(row for row in rows if row.cells[0].text == "= allocated peak")
    assert allocated.cells[1].detail == f"{profile.peak_allocated_bytes:,} bytes"


def test_what_cannot_be_predicted_is_said_in_the_report_of_what_was_measured(searched):
    result, _ = searched
    unpredictable = local_predictor(refer(SMALL.replace(":small", ":without_shapes")))
    content = report_on_search(result, ASKED, unpredictable)
    assert drawn(content) == {}
    assert any("the report has no prediction beside the answer" in note for note in notes_of(content))
    assert "frontier" in names_of(content)


# ── times ───────────────────────────────────────────────────────────────────────────────────────


def of_time(profile):
    """The page of a profile, and the names of its sections about time."""
    page = report_on_profile(profile)
    return page, [name for name in names_of(page) if name in ("roofline", "time")]


def test_a_dot_of_the_roofline_is_where_its_class_is_with_an_area_by_its_share():
    page, _ = of_time(TIMED)
    roofline = drawn(page)["roofline"]
    data = roofline["data"]
    dots = {each["name"]: each for each in data if "markers" in each["mode"]}
    assert list(dots) == ["1 elementwise", "2 matmul float16"]
    matmul = dots["2 matmul float16"]
    assert (matmul["x"], matmul["y"]) == ([40], [pytest.approx(40_000 / 1e-3)])
    areas = [dot["marker"]["size"] ** 2 for dot in dots.values()]
    assert areas[0] / areas[1] == pytest.approx(0.75 / 0.1, rel=0.02)
    assert [row[:4] for row in rows_of(page, "roofline")] == [
        ("1", "elementwise", "75.0%", "7.5 ms"),
        ("2", "matmul float16", "10.0%", "1 ms"),
    ]
    axes = roofline["layout"]
    assert axes["xaxis"]["title"]["text"] == "FLOPs for each byte moved"
    assert axes["yaxis"]["title"]["text"] == "FLOP/s attained"


def test_the_roofs_of_the_card_meet_where_memory_and_arithmetic_take_as_long():
    memory, vector, tensor = (
        each for each in drawn(of_time(TIMED)[0])["roofline"]["data"] if each["mode"] == "lines"
    )
    assert memory["name"] == "memory: 0 GB/s"
    assert (vector["y"], tensor["y"]) == ([1e9] * 2, [4e9] * 2)
    assert (vector["x"][0], tensor["x"][0]) == (10, 40)
    assert (memory["x"][1], memory["y"][1]) == (40, 4e9)
    assert len({each["line"].get("dash") for each in (memory, vector, tensor)}) == 3


def test_numbers_of_dots_do_not_lie_on_each_other_where_there_is_room():
    sides = [dot["textposition"] for dot in drawn(of_time(UNSTATED)[0])["roofline"]["data"] if "text" in dot]
    assert len(sides) == 2
    assert "middle right" not in sides  # along the roofs


def test_the_time_by_module_adds_up_to_the_devices():
    page, _ = of_time(TIMED)
    (icicle,) = drawn(page)["time"]["data"]
    assert dict(zip(icicle["ids"], icicle["text"], strict=True)) == {
        "/": "8.5 ms", "/own": "0.5 ms", "body": "7 ms", "body.conv": "7 ms", "head": "1 ms"
    }  # fmt: skip
    assert rows_of(page, "time") == [
        ("body.conv", "elementwise", "70.0%", "7 ms"),
        ("head", "matmul", "10.0%", "1 ms"),
        ("(in no submodule)", "elementwise", "5.0%", "0.5 ms"),
    ]
    said = block_of(page, "time", Paragraph).text
    assert "predicted to take 10 ms (8 to 12 ms); 15.0% of the step" in said


def test_a_prediction_without_rows_behind_it_has_no_seconds_in_the_report():
    seconds = re.compile(r"[0-9] m?s\b|FLOP/s attained")
    stated, unstated = (
        re.sub(r"<script>.*?</script>", "", render(report_on_profile(each)), flags=re.DOTALL)
        for each in (TIMED, UNSTATED)
    )
    assert seconds.search(stated)
    assert not seconds.search(unstated)
    assert "70.0%" in unstated
    assert "There are no measured times" not in unstated
    assert (
        "No step time is stated, only which step is slower: there are no measured times of this card."
        in unstated
    )
    heights = [dot["y"] for dot in drawn(of_time(UNSTATED)[0])["roofline"]["data"] if "text" in dot]
    assert heights == [[pytest.approx(1e8 / 4)], [4e9]]  # at their roofs


def test_without_times_the_report_has_no_such_sections():
    assert of_time(PROFILE)[1] == []


def test_what_makes_it_fit_is_in_the_report_as_it_is_in_the_text(predictor, searched):
    result, content = searched
    assert "help" not in names_of(content)
    fits = Combination(
        options=("--checkpointing blocks", "--optimizer adafactor"),
        peak_reserved_bytes=GIB,
        effect=Effect.OTHER_RULE,
    )
    advice = Advice(batch_size=1, peak_reserved_bytes=9 * GIB, levers=(), combination=fits, is_complete=True)
    nothing = dataclasses.replace(result, best=None, recommended=None, advice=advice)
    said = block_of(report_on_search(nothing, ASKED, predictor), "help", Bullets).items
    assert (
        "--checkpointing blocks --optimizer adafactor together: batch 1 fits in 1.00 GiB, with another "
        "optimizer's rule, whose learning rate has to be found anew"
    ) in said
