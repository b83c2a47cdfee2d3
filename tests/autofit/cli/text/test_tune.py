"""The text of an answer: complete, in order, readable at 80 columns and without colour."""

from __future__ import annotations

import dataclasses
import json
import re
from decimal import Decimal

import pytest

from autofit.answers.tune.answer import needed_at_least
from autofit.answers.tune.help import what_may_help
from autofit.answers.tune.sections import tune_sections
from autofit.answers.words.commands import fitting_command
from autofit.answers.words.remedies import how_it_fits
from autofit.cli.text.sections import print_sections
from autofit.explain.timing import StepSeconds
from autofit.hardware.budget import make_budget
from autofit.hardware.gpus import find_gpu
from autofit.predict.estimate import Interval, Unknown
from autofit.questions.advice import Advice, Combination, TriedLever
from autofit.questions.levers import Effect
from autofit.search.choice import Knee, RecommendedBy
from autofit.search.pruning import PrunedSetting
from autofit.settings.goals import Risk
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.result import TuneResult
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, Verdict
from autofit_workers.spec.setup import Setup

GIB = 1024**3
MIB = 1024**2


@pytest.fixture
def rendered(capsys, monkeypatch):
    """The text of a result at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def render(result, settings=None, *, asked_memory="16G", asked=None) -> str:
        settings = settings or TuneSettings(model="davenet", gpu_mem_bytes=16 * GIB)
        print_sections(tune_sections(result, settings, asked_memory=asked_memory, asked=asked))
        return capsys.readouterr().out

    return render


def flat(text: str) -> str:
    """The text without its layout."""
    return " ".join(text.split())


def test_the_sections_come_in_the_order_of_their_weight(rendered, results):
    text = rendered(results.answer())
    marks = [
        "--gpu-mem 16G",
        "conv ",
        "davenet fits at",
        "Where the memory goes",
        "Largest holders",
        "Why not one larger",
        "The same on cards",
        "Assumed and noted",
        "In your training script",
        "study davenet-16.00-GiB-card-0123456789ab",
    ]
    positions = [text.index(mark) for mark in marks]
    assert positions == sorted(positions)


def test_no_line_is_longer_than_the_terminal_and_none_is_coloured(rendered, results):
    text = rendered(results.answer())
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text  # nothing was cut


def test_the_budget_is_echoed_to_the_byte(rendered, results):
    text = flat(rendered(results.answer()))
    assert "16.00 GiB --gpu-mem 16G = 17,179,869,184 bytes" in text
    assert "− 512.00 MiB CUDA context, assumed" in text
    assert "− 491.52 MiB margin of 3%" in text
    assert "= 15.02 GiB usable by PyTorch's allocator = 16,127,602,196 bytes" in text
    assert "reserve" not in text.split("usable by")[0]


def test_a_card_and_a_reserve_are_echoed_too(rendered, results):
    gpu = find_gpu("rtx-3090")
    settings = TuneSettings(model="davenet", gpu=gpu, reserve_bytes=GIB, margin=Decimal("0.025"))
    budget = make_budget(
        gpu.total_bytes, architecture=gpu.architecture, margin=settings.margin, reserve_bytes=GIB
    )
    text = flat(rendered(results.answer(budget=budget), settings, asked_memory=None))
    assert "23.56 GiB --gpu rtx-3090, NVIDIA GeForce RTX 3090 = 25,294,798,848 bytes" in text
    assert "− 1.00 GiB reserve for other processes" in text
    assert "margin of 2.5%" in text


@pytest.mark.parametrize(("gpu_mem_bytes", "said"), [(16 * GIB, "--gpu-mem ="), (None, "Some Card =")])
def test_memory_that_was_not_typed_is_named_by_its_source(rendered, results, gpu_mem_bytes, said):
    settings = TuneSettings(model="davenet", gpu_mem_bytes=gpu_mem_bytes)
    result = results.answer(device=Device(kind="cuda", name="Some Card"))
    assert f"16.00 GiB {said} 17,179,869,184 bytes" in flat(rendered(result, settings, asked_memory=None))


def rows(text: str) -> list[list[str]]:
    names = ("cudnn", "cudnn-benchmark", "cudnn-deterministic", "native")
    table = text.split("evidence")[1].split("\n\n", maxsplit=1)[0]
    return [line.split() for line in table.splitlines() if line.split() and line.split()[0] in names]


def test_the_table_has_a_row_for_each_algorithm_the_largest_batch_first(rendered, results):
    assert rows(rendered(results.answer())) == [
        ["native", "118", "14.00", "14.00", "14.50", "93.2%", "119", "predicted"],
        ["cudnn", "94", "14.00", "15.00", "14.50", "99.9%", "95", "predicted"],
        ["cudnn-benchmark", "91", "14.00", "15.00", "14.50", "99.9%", "92", "predicted"],
    ]


def test_where_likely_and_high_agree_they_are_one_column(rendered, results):
    result = results.answer(
        frontier=(results.entry("native", 118, None),), trials=(results.outcome("native", 118, 14 * GIB),)
    )
    text = rendered(result)
    assert "up to" not in text.split("davenet fits")[0]
    assert rows(text) == [["native", "118", "14.00", "14.50", "93.2%", "–", "predicted"]]


def test_small_peaks_are_given_in_mib(rendered, results):
    small = {"peak_reserved_bytes": 26 * MIB, "device_peak_bytes": 538 * MIB}
    result = results.answer(
        frontier=(results.entry("native", 118, None, **small),),
        trials=(results.outcome("native", 118, 26 * MIB),),
    )
    text = rendered(result)
    assert rows(text) == [["native", "118", "26.00", "538.00", "0.2%", "–", "predicted"]]
    assert "MiB" in text.split("native")[0]


def test_the_default_backend_is_recommended_and_what_the_largest_costs_stands_beside_it(rendered, results):
    costs = {"cudnn": 1.0, "native": 3.14}
    answer = results.answer()
    trials = [dataclasses.replace(t, conv_cost=costs.get(t.knobs.conv_algo)) for t in answer.trials]
    text = flat(rendered(results.recommending_cudnn(dataclasses.replace(answer, trials=tuple(trials)))))
    assert (
        "fits at batch 94 in 16.00 GiB with cudnn, PyTorch's default backend: a reserved peak of 14" in text
    )
    largest = "Batch 118 fits with native, whose convolutions are predicted to take 3.1 times as long."
    assert f"GiB usable; predicted, not measured. {largest}" in text
    assert "Where the memory goes at batch 94 with cudnn, predicted" in text
    assert "batch_size=94" in text


def test_where_both_were_measured_their_rates_stand_beside_each_other(rendered, results):
    answer = results.answer()
    best = dataclasses.replace(answer.best, step_seconds=1.0, samples_per_second=118.0)
    text = flat(
        rendered(
            results.recommending_cudnn(
                dataclasses.replace(answer, best=best), step_seconds=0.25, samples_per_second=376.0
            )
        )
    )
    assert "Batch 118 fits with native, with 118 samples a second instead of 376." in text


def test_the_source_that_adds_most_to_the_interval_is_named(rendered, results):
    answer = results.answer()
    interval = Interval(low_bytes=13 * GIB, likely_bytes=14 * GIB, high_bytes=16 * GIB)
    unknowns = tuple(
        Unknown(source=source, low_bytes=13 * GIB, likely_bytes=14 * GIB, high_bytes=14 * GIB + more)
        for source, more in (("workspaces of convolutions", GIB), ("what real runs were off by", 512 * MIB))
    )
    estimate = dataclasses.replace(answer.estimate, interval=interval, unknowns=unknowns)
    text = flat(rendered(dataclasses.replace(answer, estimate=estimate)))
    assert "of the 2.00 GiB between likely and high, 1.00 GiB are workspaces of convolutions" in text
    placed = dataclasses.replace(unknowns[0], modules=("stem.0", "stem.1", "stem.2"))
    estimate = dataclasses.replace(estimate, unknowns=(placed, unknowns[1]))
    text = flat(rendered(dataclasses.replace(answer, estimate=estimate)))
    assert "1.00 GiB are workspaces of convolutions, most in stem.0 and 2 like it" in text
    alone = dataclasses.replace(estimate, unknowns=unknowns[:1])
    assert "between likely and high" not in rendered(dataclasses.replace(answer, estimate=alone))


def test_settings_that_fit_as_much_share_a_row(rendered, results):
    entries = [results.entry("cudnn", 94, 95), results.entry("cudnn-benchmark", 94, 95)]
    text = rendered(results.answer(frontier=(*entries, results.entry("native", 118, 119))))
    (row,) = (line for line in text.splitlines() if " 94 " in line and "95" in line and "predicted" in line)
    assert "cudnn," in row


def test_the_answer_is_one_sentence_that_says_how_it_is_known(rendered, results):
    text = flat(rendered(results.answer()))
    assert (
        "davenet fits at batch 118 in 16.00 GiB with native: a reserved peak of 14.00 GiB of the 15.02 GiB "
        "usable; predicted, not measured." in text
    )


def test_the_default_needs_no_other_beside_it(rendered, results):
    result = results.answer()
    best = dataclasses.replace(result.best, batch_size=94, knobs=Knobs())
    assert "PyTorch's default" not in rendered(dataclasses.replace(result, best=best))


def test_an_uncertain_prediction_says_likely_and_at_most(rendered, results):
    result = results.answer()
    interval = dataclasses.replace(result.best.interval, high_bytes=15 * GIB)
    best = dataclasses.replace(result.best, interval=interval)
    text = flat(rendered(dataclasses.replace(result, best=best)))
    assert "a reserved peak of 14.00 GiB likely, 15.00 GiB at most, of the 15.02 GiB usable" in text


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (Evidence.MEASURED, "measured on NVIDIA L4."),
        (Evidence.EMULATED, "measured on NVIDIA L4, a larger card, under a memory limit."),
    ],
)
def test_a_measured_answer_names_the_card_and_the_speed(rendered, results, evidence, said):
    result = results.answer(device=Device(kind="cuda", name="NVIDIA L4", driver="580"))
    interval = dataclasses.replace(result.best.interval, high_bytes=15 * GIB)
    best = dataclasses.replace(
        result.best, evidence=evidence, interval=interval, step_seconds=0.25, samples_per_second=1472.0
    )
    text = flat(rendered(dataclasses.replace(result, best=best)))
    assert f"{said} A step took 0.25 s, 1,472 samples a second." in text
    assert "at most" not in text.split("Where the memory goes")[0]  # the prediction's, not the measurement's


def test_the_memory_adds_up_from_its_parts_to_what_the_device_shows(rendered, results):
    text = flat(rendered(results.answer()))
    assert "activations 6.00 GiB 60.0% ████████████ " in text
    assert "gradients" not in text  # nothing of them is alive at this peak
    steps = [
        "= allocated peak 10.00 GiB",
        "+ not in use 4.00 GiB",
        "= reserved peak 14.00 GiB likely; 12.00 GiB",
    ]
    steps += ["+ CUDA context 512.00 MiB", "= device peak 14.50 GiB"]
    positions = [text.index(step) for step in steps]
    assert positions == sorted(positions)


def test_the_largest_holders_name_module_operator_and_line(rendered, results):
    text = rendered(results.answer())
    assert "1.00 GiB  10.0%  image.layers.0  convolution  davenet.py:59" in text
    assert "zeros_like" in text
    assert "<string>" not in text


def test_each_algorithm_says_why_not_one_larger_and_where_it_would_thrash(rendered, results):
    text = flat(rendered(results.answer()).split("Why not one larger")[1].split("The same on")[0])
    assert "native batch 119 is predicted to reserve up to 15.05 GiB, 35.52 MiB over the budget." in text
    assert text.index("native batch 119") < text.index("cudnn batch 95") < text.index("cudnn-benchmark batch")
    assert text.count("would still run") == 1
    assert "Batch 92 to 110 would still run, but thrash." in text
    assert "Thrashing: the allocator empties its cache and tries again" in text


def test_what_would_not_thrash_is_not_explained(rendered, results):
    assert "hrashing" not in rendered(results.answer(frontier=(results.entry("native", 118, 119),)))


def test_equal_reasons_are_told_once(rendered, results):
    frontier = tuple(results.entry(name, 94, 95) for name in ("cudnn", "cudnn-deterministic"))
    text = rendered(results.answer(frontier=frontier)).split("Why not one larger")[1]
    assert text.count("35.52") == 1
    assert flat(text).count("cudnn-deterministic") == 1


def test_the_cards_of_the_class_are_grouped_by_their_answer_smallest_first(rendered, results):
    text = flat(rendered(results.answer()))
    assert "The same on cards sold with about 16.00 GiB, with native" in text
    assert "107 14.56 GiB a2, t4 116 15.75 GiB v100-16g" in text


def test_without_cards_there_is_no_such_section(rendered, results):
    assert "The same on cards" not in rendered(results.answer(cards=()))


def test_assumptions_and_notes_are_told(rendered, results):
    text = flat(rendered(results.answer()))
    assert "· CUDA context of 512 MiB assumed for sm_80" in text
    assert "· a thing to know" in text


def test_where_no_card_is_named_it_says_what_is_spanned_and_how_to_narrow_it(rendered, results):
    result = results.answer()
    assert "narrow it" not in flat(rendered(result))
    architectures = ("sm_80", "sm_120", "sm_75")
    estimate = dataclasses.replace(result.estimate, architectures=architectures)
    spanned = dataclasses.replace(result, architectures=architectures, estimate=estimate)
    said = "no --gpu given: sm_80 is assumed, and the range covers sm_75, sm_80, sm_120"
    assert f"· {said}; name the card to narrow it" in flat(rendered(spanned))
    assert spanned.to_dict()["architectures"] == ["sm_80", "sm_120", "sm_75"]


def test_the_lines_to_copy_apply_the_answer(rendered, results):
    result = results.answer()
    knobs = Knobs(conv_algo="cudnn-benchmark", precision="amp-bf16", optimizer="adamw")
    best = dataclasses.replace(result.best, knobs=knobs)
    lines = rendered(dataclasses.replace(result, best=best)).split("In your training script\n")[1]
    code = [line.strip() for line in lines.split("\n\n")[0].splitlines()]
    assert code == [
        "torch.backends.cudnn.benchmark = True",
        "loader = torch.utils.data.DataLoader(dataset, batch_size=118)",
        "optimizer = torch.optim.AdamW(model.parameters())",
        'with torch.autocast("cuda", dtype=torch.bfloat16):',
        "loss = ...  # forward pass and loss; backward outside",
    ]
    compile("\n".join(line[4:] for line in lines.split("\n\n")[0].splitlines()), "lines", "exec")


def test_the_study_and_how_to_begin_it_anew_end_the_text(rendered, results):
    text = rendered(results.answer())
    assert text.rstrip().splitlines()[-2:] == [
        "study davenet-16.00-GiB-card-0123456789ab",
        "The same command answers from the study; --fresh starts over.",
    ]


@pytest.fixture
def cpu_answer(results):
    result = results.answer(device=Device(kind="cpu", name="cpu"), budget=make_budget(2 * GIB, kind="cpu"))
    best = dataclasses.replace(
        result.best,
        batch_size=61,
        knobs=Knobs(),
        evidence=Evidence.MEASURED_CPU,
        peak_reserved_bytes=None,
        device_peak_bytes=GIB,
        interval=None,
        step_seconds=2.0,
        samples_per_second=30.5,
    )
    ran = results.outcome("cudnn", 61, 0, evidence=Evidence.MEASURED_CPU)
    ran = dataclasses.replace(ran, device=result.device, steady=Peaks(device_bytes=GIB))
    entry = results.entry(
        "cudnn", 61, 62, evidence=Evidence.MEASURED_CPU, peak_reserved_bytes=None, device_peak_bytes=GIB
    )
    return dataclasses.replace(result, best=best, frontier=(entry,), trials=(ran,), estimate=None, cards=())


def test_private_memory_that_exceeds_the_resident_stands_beside_it(rendered, cpu_answer):
    settings = TuneSettings(model="davenet", gpu_mem_bytes=2 * GIB, device="cpu")
    (ran,) = cpu_answer.trials
    ran = dataclasses.replace(ran, steady=Peaks(device_bytes=GIB, private_bytes=GIB * 3 // 2))
    text = rendered(dataclasses.replace(cpu_answer, trials=(ran,)), settings, asked_memory="2G")
    assert rows(text) == [["cudnn", "61", "1.00", "1.50", "77.3%", "62", "measured-cpu"]]


def test_a_cpu_answer_speaks_of_resident_memory_and_of_no_card(rendered, cpu_answer):
    settings = TuneSettings(model="davenet", gpu_mem_bytes=2 * GIB, device="cpu")
    text = rendered(cpu_answer, settings, asked_memory="2G")
    assert rows(text) == [["cudnn", "61", "1.00", "51.5%", "62", "measured-cpu"]]
    assert (
        "fits at batch 61 in 2.00 GiB with cudnn: a resident peak of 1.00 GiB of the 1.94 GiB usable"
        in flat(text)
    )
    assert "measured on the CPU. A step took 2 s, 30.5 samples a second." in flat(text)
    for of_a_card in ("CUDA", "reserved", "Where the memory goes", "torch.backends.cudnn"):
        assert of_a_card not in text


@pytest.fixture
def at_every_risk(results):
    """Makes an answer whose entries know their largest batch at each risk, and what comes of it."""
    sizes = {"cudnn": (94, 110, 80), "cudnn-benchmark": (91, 92, 80), "native": (118, 121, 118)}

    def make(still_runs):
        return results.answer(
            frontier=tuple(
                results.entry(
                    name,
                    by_risk[0],
                    by_risk[0] + 1,
                    largest_by_risk=dict(zip(Risk, by_risk, strict=True)),
                    likely_still_runs=still_runs,
                )
                for name, by_risk in sizes.items()
            )
        )

    return make


def risks_told(text):
    return flat(text.split("At every --risk")[1].split("The same on")[0])


def test_every_risk_is_shown_with_what_happens_between_safe_and_likely(rendered, at_every_risk):
    text = risks_told(rendered(at_every_risk(still_runs=True)))
    assert "safe likely worst" in text
    assert "cudnn 94 110 80 from 95 to 110 cuDNN falls back to a smaller, slower plan instead of" in text
    assert "cudnn-benchmark 91 92 80 at 92 benchmark mode does not fall back quietly: it would thrash" in text
    assert "native 118 121 118 from 119 to 121 there is no smaller plan: it would thrash" in text
    assert "memory" not in text


def test_where_smaller_plans_would_not_suffice_nothing_else_is_said(rendered, at_every_risk):
    text = risks_told(rendered(at_every_risk(still_runs=False)))
    assert "cuDNN falls back to smaller, slower plans, and may still run out of memory" in text
    assert "benchmark mode does not fall back quietly: it would thrash or run out of memory" in text
    assert "there is no smaller plan: it would run out of memory" in text
    assert "instead of failing" not in text


def test_where_no_risk_changes_the_answer_there_is_no_such_section(rendered, results):
    same = dict.fromkeys(Risk, 118)
    assert "--risk" not in rendered(
        results.answer(frontier=(results.entry("native", 118, 119, largest_by_risk=same),))
    )
    assert "--risk" not in rendered(results.answer())


def test_a_likely_answer_is_not_said_to_fit(rendered, results):
    assert "davenet likely fits at batch 118" in flat(rendered(results.answer(risk=Risk.LIKELY)))


def test_what_the_interval_rests_on_is_told_of_a_prediction_alone(rendered, results):
    said = "120 real runs of convolutional-dense models on ampere-ada cards"
    assert said in flat(rendered(results.answer()))
    result = results.answer()
    best = dataclasses.replace(result.best, evidence=Evidence.MEASURED)
    assert said not in flat(rendered(dataclasses.replace(result, best=best)))


# ── nothing fits ────────────────────────────────────────────────────────────────────────────────


def test_where_nothing_fits_the_smallest_size_and_its_need_are_told(rendered, results):
    text = flat(rendered(results.nothing_fits()))
    assert (
        "Nothing fits: at batch 1, the smallest tried, davenet needs 17.00 GiB; 15.02 GiB are usable." in text
    )
    assert "Why nothing fits cudnn batch 1 is predicted to reserve" in text
    assert "In your training script" not in text


def test_what_ran_out_of_memory_is_not_said_to_need_what_it_had_reached(rendered, results):
    measured = results.outcome("cudnn", 1, 9 * GIB, Verdict.OOM, Evidence.MEASURED)
    text = flat(rendered(results.nothing_fits(trials=(measured,), estimate=None)))
    assert "davenet needs more than is available; 15.02 GiB are usable" in text
    assert "a larger card (`autofit gpus` lists them)" in text


OPTIONS = ("--precision", "--optimizer", "--conv-algo", "--checkpointing", "--allocator")


def advice(result, **changes) -> str:
    given = {"model": "davenet", "gpu_mem_bytes": 16 * GIB, **changes}
    return "\n".join(what_may_help(result, TuneSettings(**given)))


def test_the_advice_names_only_what_was_not_asked_for_already(results):
    nothing = results.nothing_fits()
    everything = advice(nothing, conv_algos=("cudnn",))
    assert "--precision amp-bf16" in everything
    assert "--optimizer sgd: it keeps no state (now 1.00 GiB)" in everything
    assert "--conv-algo native" in everything
    assert "--checkpointing blocks, if the model repeats blocks" in everything
    assert "--allocator expandable_segments" in everything
    done = advice(
        nothing,
        conv_algos=("cudnn", "native"),
        knobs=Knobs(
            precision="amp-bf16",
            optimizer="sgd",
            checkpointing="every:2",
            allocator="expandable_segments",
        ),
    )
    assert not any(option in done for option in OPTIONS)
    knobs = {
        "precision": ("fp32", "bf16"),
        "optimizer": ("sgd", "adam"),
        "checkpointing": ("none", "blocks"),
        "allocator": ("default", "max_split:64"),
    }
    searched = advice(nothing, conv_algos=("native",), searched=tuple(knobs.items()))
    assert not any(option in searched for option in OPTIONS)


def test_what_was_tried_stands_with_what_it_saves_and_the_command_that_fits(rendered, results):
    def tried(option, saved_bytes, *, fits):
        name, value = option.split()
        return TriedLever(name=name, value=value, how=option, saved_bytes=saved_bytes, fits=fits)

    computed = Advice(
        batch_size=1,
        peak_reserved_bytes=17 * GIB,
        levers=(tried("--optimizer-impl fused", 3 * GIB, fits=True), tried("--allocator x", GIB, fits=False)),
        combination=Combination(options=("--optimizer-impl fused",), peak_reserved_bytes=14 * GIB),
        is_complete=True,
    )
    nothing = results.nothing_fits(advice=computed)
    text = rendered(nothing, asked={"model": "davenet", "gpu_mem": "16G", "fresh": None})
    assert "--optimizer-impl fused saves 3.00 GiB of 17.00 GiB: batch 1 fits" in text
    assert "--allocator x saves 1.00 GiB of 17.00 GiB\n" in re.sub(" +\n", "\n", text)
    assert "    autofit tune --model davenet --gpu-mem 16G --optimizer-impl fused\n" in text
    assert "--optimizer sgd" not in text


def test_a_script_is_given_no_advice_that_it_refuses(results):
    text = advice(results.nothing_fits(), script="train.py", batch_argument="-n")
    assert "another precision or optimizer (its state is 1.00 GiB now), set inside the script" in text
    assert "autofit.checkpoint_blocks(model) inside the script" in text
    assert not any(option in text for option in OPTIONS if option != "--conv-algo")


def test_inference_is_given_no_advice_on_its_backward(results):
    assert "--checkpointing" not in advice(results.nothing_fits(estimate=None), setup=Setup(mode="infer"))


def test_the_advice_names_the_smallest_whole_cards_that_hold_it(results):
    text = advice(results.nothing_fits())
    assert "a card that leaves 17.00 GiB for the allocator: rtx-a4500, rtx-4000-ada, " in text
    assert "mig" not in text


def test_a_card_is_named_only_if_the_reserve_still_fits(results):
    assert "rtx-a4500" not in advice(results.nothing_fits(), reserve_bytes=4 * GIB)


def test_at_the_likely_risk_the_likely_peak_is_what_is_needed(results):
    estimate = dataclasses.replace(
        results.estimate(1),
        interval=Interval(low_bytes=16 * GIB, likely_bytes=17 * GIB, high_bytes=18 * GIB),
    )
    nothing = results.nothing_fits(estimate=estimate, trials=())
    assert needed_at_least(nothing) == 18 * GIB
    assert needed_at_least(dataclasses.replace(nothing, risk=Risk.LIKELY)) == 17 * GIB


def test_what_exceeds_every_card_is_said_to(results):
    huge = results.outcome("cudnn", 1, 900 * GIB, Verdict.OOM)
    text = advice(results.nothing_fits(trials=(huge,), estimate=None))
    assert "no card: none in the catalogue leaves 900.00 GiB for the allocator" in text


def test_a_margin_that_would_hold_it_is_named(results):
    barely = results.outcome("cudnn", 1, 15 * GIB + GIB // 4, Verdict.OOM)
    text = advice(results.nothing_fits(trials=(barely,), estimate=None))
    assert "a smaller --margin or --reserve: they keep 491.52 MiB free" in text


def test_on_the_cpu_the_advice_is_more_memory(results):
    result = results.nothing_fits(device=Device(kind="cpu", name="cpu"), estimate=None, trials=())
    text = advice(result, device="cpu", knobs=Knobs(precision="amp-bf16", checkpointing="blocks"))
    assert text == "a larger --gpu-mem"


# What was measured, and what a limit left open


@pytest.fixture
def measured(results):
    """An answer that was measured and verified."""
    entry = dataclasses.replace(
        results.entry("native", 118, 119),
        evidence=Evidence.MEASURED,
        step_seconds=0.25,
        samples_per_second=472.0,
        predicted_bytes=13 * GIB,
        prediction_error=-0.0714,
    )
    answer = results.answer()
    best = dataclasses.replace(
        answer.best, evidence=Evidence.MEASURED, step_seconds=0.25, samples_per_second=472.0, soak_steps=20
    )
    knee = Knee(batch_size=64, knobs=best.knobs, samples_per_second=460.0, best_samples_per_second=472.0)
    return dataclasses.replace(answer, frontier=(entry,), best=best, knee=knee)


def test_what_was_measured_is_shown_with_rates_and_the_error_of_the_prediction(rendered, measured):
    text = rendered(measured)
    assert max(map(len, text.splitlines())) <= 80
    section = flat(text.split("As measured")[1])
    assert "native 118 250 ms 472 13.00 GiB -7.1%" in section
    assert "Throughput knee: batch 64 with native" in section
    assert "460 samples a second, 97% of it." in section
    assert "It was verified by 20 steps in a fresh process." in flat(text)


def test_of_a_prediction_no_times_are_shown(rendered, results):
    assert "As measured" not in rendered(results.answer())


def test_a_search_that_a_limit_ended_is_not_said_to_find_that_nothing_fits(rendered, results):
    result = results.answer(best=None, frontier=(), trials=(), stopped_by="--max-seconds", estimate=None)
    text = flat(rendered(result))
    assert "Nothing is known to fit: --max-seconds ended the search; no size was tried." in text
    assert "What may help" not in text


@pytest.mark.parametrize("kind", ["answer", "nothing_fits"])
def test_an_earlier_answer_reads_as_it_did_and_says_when_it_was_found(rendered, results, kind):
    first = getattr(results, kind)(answered_seconds=1_795_000_000.0)
    again = dataclasses.replace(TuneResult.from_dict(json.loads(first.to_json())), cached=True)
    *said, last = rendered(again).splitlines()
    assert rendered(first).splitlines()[: len(said)] == said
    assert last == "Answer of 2026-11-18 11:06 UTC: nothing was run. --fresh runs it again."


def test_a_search_over_several_knobs_names_them_marks_the_front_and_tells_what_was_not_searched(
    rendered, results
):
    fast, slow = Knobs(precision="amp-bf16"), Knobs(checkpointing="blocks")
    text = flat(
        rendered(
            results.answer(
                best=dataclasses.replace(results.answer().best, knobs=fast),
                frontier=(
                    results.entry("cudnn", 90, 91, dominated_by=fast),
                    results.entry("cudnn", 118, 119, knobs=fast),
                ),
                pruned=(PrunedSetting(knobs=slow, at_most=111, failing_batch=112, faster=fast),),
            )
        )
    )
    assert "davenet · the workload's optimizer · train" in text, "what was searched is not fixed"
    assert "with cudnn · amp-bf16 · no checkpointing: a reserved peak" in text
    assert "Pareto" in text
    assert text.count("◆") == 2, "the mark and what it means"
    assert "111 batch 112, which" in text


# ── predicted times ─────────────────────────────────────────────────────────────────────────────

SECONDS = StepSeconds(low=0.4, likely=0.5, high=0.6, low_80=0.45, high_80=0.55)


def timed_answer(results, *, stated):
    """The answer with an order of speed, and with seconds where they are stated: cudnn is the fastest."""
    seconds = {"predicted_step_seconds": SECONDS, "predicted_samples_per_second": 188.0} if stated else {}
    slower = {"predicted_step_seconds": SECONDS, "predicted_samples_per_second": 134.0} if stated else {}
    frontier = (
        results.entry("cudnn", 94, 95, relative_sample_time=1.0, **seconds),
        results.entry("native", 118, 119, relative_sample_time=1.4, **slower),
    )
    answer = results.answer(frontier=frontier)
    best = dataclasses.replace(answer.best, **slower)
    answer = results.recommending_cudnn(dataclasses.replace(answer, best=best), **seconds)
    if not stated:
        return answer
    recommended = dataclasses.replace(answer.recommended, by=RecommendedBy.PREDICTED_RATE)
    knee = Knee(
        batch_size=47,
        knobs=recommended.knobs,
        samples_per_second=180.0,
        best_samples_per_second=188.0,
        is_predicted=True,
    )
    return dataclasses.replace(answer, recommended=recommended, knee=knee, epoch_samples=188_000)


def test_stated_times_are_a_table_with_the_knee_and_decide_the_answer(rendered, results):
    answer = timed_answer(results, stated=True)
    text = rendered(answer)
    assert max(map(len, text.splitlines())) <= 80
    out = flat(text)
    for said in (
        "Speed at the largest batch, predicted",
        "500 ms (400 to 600 ms) 188 the fastest",
        "about 1.4 × slower",
        "batch 94 in 16.00 GiB with cudnn, predicted to be as fast as any:",
        "A step is predicted to take 500 ms (400 to 600 ms), 188 samples a second.",
        "An epoch of 188,000 samples is predicted to take 16.7 min (13.3 to 20 min).",
        "with 134 samples a second instead of 188, as predicted",
        "Throughput knee: batch 47 with cudnn, the smallest predicted within 5% of the best rate: 180",
    ):
        assert said in out, out
    document = answer.to_dict()
    assert document["recommended"]["by"] == "predicted-rate"
    assert document["epoch_seconds"] == pytest.approx(1000)
    assert TuneResult.from_dict(json.loads(answer.to_json())) == answer


def test_without_stated_times_there_is_an_order_and_no_seconds(rendered, results):
    answer = dataclasses.replace(timed_answer(results, stated=False), epoch_samples=188_000)
    text = rendered(answer)
    assert max(map(len, text.splitlines())) <= 80
    out = flat(text)
    assert "Which is faster, predicted" in out
    assert "about 1.4 × slower" in out
    assert "How long an epoch takes is not known, as no step time is given." in out
    for unsaid in ("samples a second", "step (95 %)", "Throughput knee"):
        assert unsaid not in out


def test_a_command_that_fits_has_an_option_in_place_of_the_one_that_was_typed():
    combination = Combination(
        options=("--batch-size 2 --grad-accumulation 2", "--optimizer adamw8bit", "--no-set-to-none"),
        peak_reserved_bytes=GIB,
    )
    asked = {"model": "gpt2", "batch_size": 4, "optimizer": "adamw", "set_to_none": True}
    assert fitting_command(combination, "check", asked) == (
        "autofit check --model gpt2 --batch-size 2 --grad-accumulation 2 --optimizer adamw8bit "
        "--no-set-to-none"
    )


def test_what_trains_something_else_is_named_as_such_and_stands_among_other_ways():
    advised = Advice(
        batch_size=4,
        peak_reserved_bytes=46 * GIB,
        levers=(),
        combination=Combination(
            options=("--checkpointing blocks", "--optimizer adamw8bit"),
            peak_reserved_bytes=17 * GIB,
            effect=Effect.ROUNDS,
        ),
        is_complete=True,
        others=(
            Combination(
                options=("--checkpointing blocks", "--optimizer adafactor"),
                peak_reserved_bytes=15 * GIB,
                effect=Effect.OTHER_RULE,
            ),
        ),
    )
    first, other = how_it_fits(advised)
    assert first == "--checkpointing blocks --optimizer adamw8bit together: batch 4 fits in 17.00 GiB"
    assert other == (
        "or --checkpointing blocks --optimizer adafactor: batch 4 fits in 15.00 GiB, with another "
        "optimizer's rule, whose learning rate has to be found anew"
    )
