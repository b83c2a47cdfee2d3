"""`autofit cards`, and `check` and `estimate` of several cards: one table, one document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from autofit.errors import ExitCode
from autofit.explain.timing import StepSeconds
from autofit.hardware.gpus import catalogue
from autofit.predict.estimate import Interval
from autofit.questions.advice import Advice, Combination
from autofit.questions.card_fits import CardFit
from autofit.questions.cards import CardsAnswer
from autofit.questions.check import Answer
from autofit.questions.levers import levers
from autofit.tuning.result import CardResults
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Verdict

GIB = 1024**3
CARDS = ("cards", "--model", "davenet", "--batch-size", "94")
TINY = f"{Path(__file__).parents[2] / 'tiny_workloads.py'}:small"
LEVER = next(lever for lever in levers(Knobs()) if lever.name == "allocator")


def advised(*options):
    combination = Combination(options=options, peak_reserved_bytes=11 * GIB) if options else None
    return Advice(
        batch_size=94, peak_reserved_bytes=15 * GIB, levers=(), combination=combination, is_complete=True
    )


def fit(gpu, verdict=Answer.FITS, likely=Verdict.FITS, **changes):
    card = catalogue()[gpu]
    usual = {
        "architecture": card.architecture,
        "total_bytes": card.total_bytes,
        "usable_bytes": card.total_bytes - GIB,
        "interval": Interval(low_bytes=12 * GIB, likely_bytes=14 * GIB, high_bytes=15 * GIB),
        "device_peak_bytes": 15 * GIB,
        "largest_batch": 90,
    }
    return CardFit(gpu=gpu, verdict=verdict, likely_verdict=likely, **{**usual, **changes})


@pytest.fixture
def asked():
    """A stand-in for the prediction, and what it was asked."""
    seen = []

    def make(*cards, **changes):
        def answer(settings, workload, question, _emit):
            seen.append((settings, workload, question))
            return CardsAnswer(
                workload="davenet",
                mode="train",
                batch_size=94,
                knobs=Knobs(),
                risk=settings.risk,
                cards=cards or (fit("t4"), fit("rtx-3090")),
                **changes,
            )

        return answer

    make.seen = seen
    return make


def test_the_whole_catalogue_is_asked_unless_cards_are_named(autofit, asked):
    assert autofit(*CARDS, cards=asked()).code == 0
    assert autofit(*CARDS, "--gpu", "all", cards=asked()).code == 0
    assert autofit(*CARDS, "--gpu", "t4,RTX 3090", "--what-if", "--risk", "likely", cards=asked()).code == 0
    first, second, (settings, workload, named) = asked.seen
    assert first == second
    assert set(first[2].gpus) == set(catalogue().values())
    assert [gpu.key for gpu in named.gpus] == ["t4", "rtx-3090"]
    assert (workload.target, named.batch_size, named.with_traces) == ("davenet", 94, True)
    assert settings.risk == "likely"
    assert not first[2].with_traces


def test_a_row_says_if_the_batch_fits_and_what_makes_it_fit(autofit, asked):
    answer = asked(
        fit("gtx-1650", Answer.DOES_NOT_FIT, Verdict.OOM, largest_batch=None, reason="needs more"),
        fit("t4", Answer.UNSURE, Verdict.THRASH, lever=LEVER, advice=advised(LEVER.how)),
        fit("rtx-3090"),
        num_levers_untried=11,
    )
    finished = autofit(*CARDS, cards=answer)
    rows = {line.split()[0]: " ".join(line.split()) for line in finished.out.splitlines() if line.strip()}
    assert rows["gtx-1650"] == "gtx-1650 3.62 2.62 does not fit 14.00 15.00 – needs more"
    assert rows["t4"].endswith("unsure, likely thrashes 14.00 15.00 90 --allocator expandable_segments")
    assert rows["rtx-3090"] == "rtx-3090 23.56 22.56 fits 14.00 15.00 90"
    assert "Batch 94 fits on 1 of 3 cards, the smallest of them rtx-3090 with 23.56 GiB." in finished.out
    assert "--what-if tries 11 more changes" in finished.out
    assert finished.code == 0


def test_the_command_for_each_card_on_which_changes_make_it_fit_stands_below(autofit, asked):
    both = ("--optimizer-impl fused", "--checkpointing blocks")
    answer = asked(
        fit("gtx-1650", Answer.DOES_NOT_FIT, advice=advised()),
        fit("t4", Answer.UNSURE, lever=LEVER, advice=advised(LEVER.how)),
        fit("rtx-3060", Answer.DOES_NOT_FIT, advice=advised(*both)),
    )
    several = ("--model", "davenet", "--gpu", "gtx-1650,t4,rtx-3060", "--batch-size", "94", "--margin", "5%")
    finished = autofit("check", *several, cards=answer)
    assert finished.code == ExitCode.NOTHING_FITS
    assert " ".join((*both[0].split(), *both[1].split())) in " ".join(finished.out.split())
    commands = [line.strip() for line in finished.out.splitlines() if line.startswith("    autofit ")]
    typed = "autofit check --model davenet --gpu {} --margin 5% --batch-size 94"
    assert commands == [
        f"{typed.format('t4')} {LEVER.how}",
        f"{typed.format('rtx-3060')} {' '.join(both)}",
    ]
    more = ("t4", "a10", "l4", "rtx-3060", "v100-16g")
    many = asked(*(fit(gpu, Answer.UNSURE, advice=advised(LEVER.how)) for gpu in more))
    assert "    autofit " not in autofit("check", *several, cards=many).out


def test_check_tries_what_costs_a_trace_and_estimate_where_it_is_asked_to(autofit, asked):
    several = (*CARDS[1:], "--gpu", "t4,rtx-3090")
    autofit("check", *several, cards=asked())
    autofit("estimate", *several, cards=asked())
    autofit("estimate", *several, "--what-if", cards=asked())
    assert [question.with_traces for _, _, question in asked.seen] == [True, False, True]


def test_where_it_fits_on_no_card_the_exit_code_says_so(autofit, asked):
    finished = autofit(*CARDS, cards=asked(fit("t4", Answer.UNSURE)))
    assert finished.code == ExitCode.NOTHING_FITS
    assert "fits on none of these cards" in finished.out


@pytest.mark.parametrize("command", ["cards", "check", "estimate"])
def test_several_cards_are_one_document_whoever_asks(autofit, asked, command):
    finished = autofit(command, *CARDS[1:], "--gpu", "t4,rtx-3090", "--json", cards=asked())
    document = json.loads(finished.out)
    assert document["schema"] == "autofit.cards/1"
    assert [card["gpu"] for card in document["cards"]] == ["t4", "rtx-3090"]
    ((_, _, question),) = asked.seen
    assert [gpu.key for gpu in question.gpus] == ["t4", "rtx-3090"]
    assert finished.code == 0


def test_check_of_several_cards_exits_with_what_is_true_of_some_and_estimate_decides_nothing(autofit, asked):
    none = asked(fit("t4", Answer.DOES_NOT_FIT), fit("rtx-3090", Answer.UNSURE))
    several = (*CARDS[1:], "--gpu", "all")
    assert autofit("check", *several, cards=none).code == ExitCode.NOTHING_FITS
    assert autofit("estimate", *several, cards=none).code == 0


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("cards", ("--gpu", "t4,rtx-309"), "no card named 'rtx-309' in the catalogue (Did you mean rtx-3090"),
        ("check", ("--gpu", "t4,rtx-309"), "no card named 'rtx-309'"),
        ("estimate", ("--gpu", "t4,rtx-309"), "no card named 'rtx-309'"),
        ("check", ("--gpu", "t4,a100"), "'a100' may be a100-40g or a100-80g: name one of them"),
        ("check", ("--gpu", "t4,all"), "all stands for every card: leave the others out"),
        ("check", ("--gpu", "t4,"), "'t4,' lacks a name beside a comma"),
        ("check", ("--gpu", "all", "--probe", "measure"), "No such option '--probe'"),
        ("observe", ("--gpu", "all", "--peak", "5G", "--kind", "reserved"), "several cards: name one"),
        ("cards", ("--conv-algo", "all"), "a table of cards takes one algorithm"),
        ("cards", ("--risk", "none"), "is not one of safe, likely, worst"),
        ("check", ("--gpu", "all", "--gpu-mem", "16G"), "--gpu and --gpu-mem cannot be combined"),
        ("estimate", ("--gpu", "all", "--method", "summary"), "are about one card"),
        ("estimate", ("--gpu", "t4,a10", "--report", "a.html"), "are about one card"),
        ("profile", ("--gpu", "all"), "names are several cards: name one with --gpu"),
    ],
)
def test_bad_input_is_one_sentence(autofit, asked, command, options, said):
    finished = autofit(command, *CARDS[1:], *options, cards=asked())
    assert finished.code == 2
    assert said in finished.err
    assert finished.err.count("\n") == 1
    assert not asked.seen


def test_a_search_for_several_cards_is_a_row_and_an_answer_for_each(autofit, results):
    seen = []

    def tune_each(on_cards, workload, _emit):
        seen.append((on_cards, workload))
        devices = [Device(kind="cuda", name=settings.gpu.key) for settings in on_cards]
        return CardResults(
            answers=(results.answer(device=devices[0]), results.nothing_fits(device=devices[1]))
        )

    search = ("tune", "--model", "davenet", "--gpu", "t4,gtx-1650", "--conv-algo", "native", "--quiet")
    finished = autofit(*search, tune_each=tune_each)
    assert finished.code == 0
    rows = [" ".join(line.split()) for line in finished.out.splitlines()]
    assert "t4 16.00 15.02 118 native 14.00 14.00" in rows
    assert "gtx-1650 16.00 15.02 – nothing fits" in rows
    document = autofit(*search, "--json", tune_each=tune_each).document
    assert document["schema"] == "autofit.tune-cards/1"
    assert [answer["schema"] for answer in document["answers"]] == ["autofit.tune/1"] * 2
    assert [answer["device"]["name"] for answer in document["answers"]] == ["t4", "gtx-1650"]
    on_cards, workload = seen[0]
    assert (workload.target, [settings.gpu.key for settings in on_cards]) == ("davenet", ["t4", "gtx-1650"])
    assert {settings.conv_algos for settings in on_cards} == {("native",)}


def test_of_cards_whose_seconds_are_stated_the_speed_is_told(autofit, results):
    def tune_each(_on_cards, _workload, _emit):
        untimed, timed = (results.answer(device=Device(kind="cuda", name=name)) for name in ("t4", "v100"))
        seconds = StepSeconds(low=0.8, likely=1.0, high=1.2, low_80=0.9, high_80=1.1)
        best = dataclasses.replace(
            timed.best, predicted_step_seconds=seconds, predicted_samples_per_second=118.0
        )
        return CardResults(answers=(untimed, dataclasses.replace(timed, best=best, recommended=None)))

    finished = autofit("tune", "--model", "davenet", "--gpu", "t4,v100-16g", "--quiet", tune_each=tune_each)
    rows = [" ".join(line.split()) for line in finished.out.splitlines()]
    assert any(row.startswith("t4 ") and row.endswith("– –") for row in rows), finished
    assert any(row.startswith("v100 ") and row.endswith("1 s 118") for row in rows), finished


def test_the_size_of_a_sample_that_was_found_is_told_of_each_card(autofit, results):
    found = results.answer()
    sized = {
        old: dataclasses.replace(old, seq_len=704)
        for old in {found.best.knobs, *(entry.knobs for entry in found.frontier)}
    }
    found = dataclasses.replace(
        found,
        best=dataclasses.replace(found.best, knobs=sized[found.best.knobs]),
        frontier=tuple(dataclasses.replace(each, knobs=sized[each.knobs]) for each in found.frontier),
    )
    search = ("tune", "--model", "davenet", "--gpu", "t4,gtx-1650", "--maximize", "seq-len", "--quiet")
    finished = autofit(*search, tune_each=lambda *_asked: CardResults(answers=(found, found)))
    assert " 118 native · seq-len 704 14.00 14.00" in " ".join(finished.out.split())


def test_cards_that_a_search_could_not_predict_are_named_with_the_reason(autofit, results):
    reason = "AMD's cards run convolutions with MIOpen: name an NVIDIA card"

    def tune_each(_on_cards, _workload, _emit):
        answer = results.answer(device=Device(kind="cuda", name="t4"))
        return CardResults(answers=(answer,), unanswered={"mi210": reason, "mi300x": reason})

    search = ("tune", "--model", "davenet", "--gpu", "t4,mi210,mi300x", "--quiet")
    finished = autofit(*search, tune_each=tune_each)
    assert finished.code == 0
    assert f"Not predicted on mi210, mi300x: {reason}." in finished.out
    document = autofit(*search, "--json", tune_each=tune_each).document
    assert [answer["device"]["name"] for answer in document["answers"]] == ["t4"]
    assert document["unanswered"] == [{"gpu": gpu, "reason": reason} for gpu in ("mi210", "mi300x")]


def test_a_search_for_several_cards_answers_for_those_that_it_can_predict(autofit):
    options = ("--model", TINY, "--conv-algo", "cudnn", "--json", "--max-batch", "64")
    document = autofit("tune", *options, "--gpu", "mi210,gtx-1650").document
    assert [answer["device"]["name"] for answer in document["answers"]] == ["gtx-1650"]
    (unanswered,) = document["unanswered"]
    assert unanswered["gpu"] == "mi210"
    refused = autofit("tune", *options, "--gpu", "mi210,mi300x")
    assert (refused.code, refused.document["kind"]) == (ExitCode.WORKLOAD_FAILED, "unsupported")
    assert refused.document["message"] == unanswered["reason"]


def test_a_card_without_step_times_is_named_where_the_fastest_is_asked_for(autofit):
    options = (
        "--model",
        TINY,
        "--conv-algo",
        "native",
        "--json",
        "--max-batch",
        "8",
        "--objective",
        "throughput",
    )
    document = autofit("tune", *options, "--gpu", "mi210,gtx-1650").document
    assert [answer["device"]["name"] for answer in document["answers"]] == ["gtx-1650"]
    (unanswered,) = document["unanswered"]
    assert unanswered == {
        "gpu": "mi210",
        "reason": "--objective throughput needs step times, but step times are predicted for NVIDIA cards "
        "only: name one with --gpu; otherwise drop --objective, or measure the CPU with --device cpu",
    }
    alone = autofit("tune", *options, "--gpu", "mi210")
    assert (alone.code, alone.document["message"]) == (ExitCode.USAGE, unanswered["reason"])


def test_a_card_of_which_nothing_is_predicted_has_a_row_without_sizes(autofit, asked):
    nothing = dict.fromkeys(("interval", "device_peak_bytes", "largest_batch"))
    unpredicted = fit("mi210", Answer.UNSURE, None, reason="MIOpen is not known", **nothing)
    finished = autofit(*CARDS, cards=asked(fit("t4"), unpredicted))
    rows = [" ".join(line.split()) for line in finished.out.splitlines()]
    assert "mi210 63.98 62.98 not predicted – – –" in rows
    assert "Not predicted: MIOpen is not known." in finished.out
    document = autofit(*CARDS, "--json", cards=asked(fit("t4"), unpredicted)).document
    assert (document["cards"][1]["verdict"], document["cards"][1]["interval"]) == ("unsure", None)


def test_a_card_on_which_nothing_fits_is_told_with_what_the_smallest_batch_would(autofit, results):
    def tune_each(_on_cards, _workload, _emit):
        device = Device(kind="cuda", name="gtx-1650")
        answers = results.answer(), results.nothing_fits(device=device, advice=advised(LEVER.how))
        return CardResults(answers=answers)

    out = autofit("tune", "--model", "davenet", "--gpu", "t4,gtx-1650", "--quiet", tune_each=tune_each).out
    assert f"nothing fits; batch 94 with {LEVER.how}" in " ".join(out.split())


def test_where_nothing_fits_on_any_card_a_search_exits_with_3(autofit, results):
    def tune_each(_on_cards, _workload, _emit):
        return CardResults(answers=(results.nothing_fits(), results.nothing_fits()))

    options = ("--model", "davenet", "--gpu", "t4,gtx-1650", "--quiet")
    assert autofit("tune", *options, tune_each=tune_each).code == ExitCode.NOTHING_FITS


def test_searches_for_several_cards_share_their_traces_and_are_those_of_one_card(autofit):
    options = ("--model", TINY, "--conv-algo", "cudnn", "--json", "--max-batch", "64")
    both = autofit("tune", *options, "--gpu", "gtx-1650,rtx-2060")
    assert both.err.count("tracing batch 4\n") == 1
    answers = both.document["answers"]
    assert [answer["device"]["name"] for answer in answers] == ["gtx-1650", "rtx-2060"]
    alone = autofit("tune", *options, "--gpu", "rtx-2060", "--probe", "predict", "--fresh").document
    assert (alone["best"], alone["frontier"]) == (answers[1]["best"], answers[1]["frontier"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu", "all", "--probe", "measure"), "cannot be combined with --probe measure"),
        (("--gpu", "all", "--device", "cuda"), "cannot be combined with --device cuda"),
        (("--gpu", "all", "--device", "cpu"), "--gpu cannot be combined with --device cpu"),
        (("--gpu", "t4,a10", "--address", "auto"), "cannot be combined with --address"),
        (("--gpu", "t4,a10", "--study", "mine"), "cannot be combined with --study"),
        (("--gpu", "t4,a10", "--report", "a.html"), "are about one card"),
        (("--gpu", "t4,rtx-309"), "no card named 'rtx-309'"),
    ],
)
def test_a_search_for_several_cards_measures_nothing(autofit, options, said):
    finished = autofit("tune", "--model", "davenet", *options)
    assert finished.code == 2
    assert said in finished.err
    assert finished.err.count("\n") == 1


def test_of_several_numbers_of_gpus_each_is_a_row_and_the_fewest_are_told(autofit, asked):
    answer = asked(
        fit("t4", Answer.DOES_NOT_FIT, Verdict.OOM, largest_batch=None, samples_per_step=94),
        fit("t4", num_gpus=4, parallel="fsdp:4", samples_per_step=376),
        fit("rtx-3090", num_gpus=4, parallel="fsdp:4", samples_per_step=376),
        fewest_gpus={"t4": 4, "rtx-3090": 1, "gtx-1650": None},
    )
    finished = autofit(*CARDS, "--gpus", "4,1", cards=answer)
    rows = [" ".join(line.split()) for line in finished.out.splitlines()]
    assert "4 fsdp:4 13.56 fits 14.00 15.00 90 376" in rows
    assert "rtx-3090 4 fsdp:4 22.56 fits 14.00 15.00 90 376" in rows
    assert "Batch 94 fits on one GPU of rtx-3090." in rows
    assert "Batch 94 fits on 4 GPUs of t4." in rows
    assert "Batch 94 fits on none of these numbers of gtx-1650." in rows
    ((settings, _, question),) = asked.seen
    assert [str(parallel) for parallel in question.parallels] == ["ddp:1", "fsdp:4"]
    assert not settings.setup.parallel


# ── how fast, and at which price ────────────────────────────────────────────────────────────────

SECONDS = StepSeconds(low=0.4, likely=0.5, high=0.6, low_80=0.45, high_80=0.55)
FAST = {
    "step_seconds": SECONDS, "samples_per_second": 188.0, "relative_step_time": 1.0, "price": 0.5,
    "samples_per_price": 188.0 * 7200, "relative_price": 1.0, "epoch_seconds": 1000.0,
}  # fmt: skip


def test_the_table_has_seconds_and_what_a_price_pays_for_where_they_are_stated(autofit, asked):
    cards = asked(fit("t4"), fit("rtx-3090", **FAST), epoch_samples=188_000)
    out = autofit(*CARDS, "--price", "rtx-3090=0.5", "--samples", "188000", cards=cards).out
    head, row = (next(line for line in out.splitlines() if word in line) for word in ("--gpu ", "rtx-3090 "))
    for name in ("step", "samples/s", "epoch", "samples for 1", "a step is", "a sample costs"):
        assert name in head
    for cell in ("500 ms", "188", "16.7 min", "1,353,600", "the fastest", "the least"):
        assert cell in row
    ((settings, _, question),) = asked.seen
    assert (question.prices, settings.epoch_samples) == ({"rtx-3090": 0.5}, 188000)


def test_the_table_of_several_numbers_of_gpus_has_them_too(autofit, asked):
    of_two = {"num_gpus": 2, "parallel": "ddp:2", "samples_per_step": 188}
    cards = asked(
        fit("t4", price=0.1), fit("t4", **of_two, **FAST), epoch_samples=188_000, fewest_gpus={"t4": 1}
    )
    asks = (*CARDS, "--gpus", "1,2", "--price", "t4=0.1", "--samples", "188000")
    lines = autofit(*asks, cards=cards).out.splitlines()
    head, row = (next(line for line in lines if word in line) for word in ("--gpu ", "ddp:2"))
    for name, cell in (("epoch", "16.7 min"), ("samples for 1", "1,353,600"), ("samples/s", "188")):
        assert name in head
        assert cell in row
    document = autofit(*asks, "--json", cards=cards).document
    assert [card["epoch_seconds"] for card in document["cards"]] == [None, 1000.0]


@pytest.mark.parametrize("fewest", [None, {"t4": 1, "rtx-3090": 1}])
def test_samples_and_prices_without_any_times_are_told_to_have_no_answer(autofit, asked, fewest):
    cards = asked(fit("t4", price=0.5), fit("rtx-3090"), epoch_samples=188_000, fewest_gpus=fewest)
    out = autofit(*CARDS, *(("--gpus", "1") if fewest else ()), cards=cards).out
    assert "No step times are predicted here, so --samples and --price have no answer." in out


def test_the_table_has_an_order_alone_where_no_seconds_are_stated(autofit, asked):
    cards = asked(fit("t4", relative_step_time=1.42), fit("rtx-3090", relative_step_time=1.0))
    out = autofit(*CARDS, cards=cards).out
    assert "about 1.4 × slower" in out
    assert "samples/s" not in out
    assert "Only which card is faster is predicted, no seconds" in out


@pytest.mark.parametrize(
    ("price", "said"),
    [
        ("t5=3", "no card named 't5'"),
        ("t4=-1", "more than 0"),
        ("t4=0", "more than 0"),
        ("t4=cheap", "is no price"),
        ("t4=inf", "is no price"),
        ("t4", "write CARD=NUM"),
        ("a10=1", "a10 is not among the cards of --gpu"),
    ],
)
def test_a_price_that_is_none_is_one_sentence(autofit, price, said):
    finished = autofit(*CARDS, "--gpu", "t4,rtx-3090", "--price", price)
    assert finished.code == ExitCode.USAGE
    assert said in finished.err
    assert len(finished.err.strip().splitlines()) == 1


def test_a_card_has_one_price(autofit):
    finished = autofit(*CARDS, "--gpu", "t4", "--price", "t4=1", "--price", "T4=2")
    assert "t4 is named twice" in finished.err


@pytest.mark.parametrize("command", ["cards", "check", "estimate", "tune"])
def test_an_epoch_of_fewer_than_one_sample_is_one_sentence(autofit, command):
    size = () if command == "tune" else ("--batch-size", "4")
    finished = autofit(command, "--model", "davenet", *size, "--gpu", "t4", "--samples", "-4")
    assert finished.code == ExitCode.USAGE
    assert "--samples: '-4' is not a whole number of 1 or more" in finished.err
    assert len(finished.err.strip().splitlines()) == 1
