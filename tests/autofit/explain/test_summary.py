"""Summaries by torchsummary's rules: those of the DAVEnet notebook to the digit, and each rule by itself."""

from __future__ import annotations

import pytest

from autofit.explain.difference import explain_difference
from autofit.explain.summary import summarize
from autofit.hardware.card import card_named
from autofit.predict.predictor import local_predictor
from autofit.questions.summary import summarize_workload
from autofit.settings.workloads import refer
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.workloads.builtins import BUILTINS

MIB = 1024**2

_SOURCE = """
import torch
from torch import nn
from autofit_workers.workload import Workload


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, rows):
        return self.relu(self.layer(rows))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.tail = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Flatten())
        self.scale = nn.Parameter(torch.ones(32))
        self.register_buffer("shift", torch.zeros(32))

    def forward(self, rows):
        rows = self.block(self.block(rows))
        return self.tail(rows) * self.scale + self.shift


def workload(build):
    return Workload(
        build_model=build,
        make_batch=lambda batch_size, device: (
            torch.ones(batch_size, 64, device=device), torch.ones(batch_size, device=device)
        ),
        loss=lambda model, batch: (model(batch[0]).sum(dim=1) * batch[1]).sum(),
        optimizer="adam",
    )


net = workload(Net)
blocks = workload(lambda: nn.Sequential(Block(), Block()))
layer = workload(lambda: nn.Linear(64, 32))
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def summarized(state, tmp_path_factory):
    """Summarizes and estimates a workload: a built-in one, or one of the file above."""
    path = tmp_path_factory.mktemp("net") / "net.py"
    path.write_text(_SOURCE)

    def call(model, batch_size, mode=None, **knobs):
        reference = refer(model if model in BUILTINS else f"{path}:{model}")
        predictor = local_predictor(reference, setup=Setup(mode=mode), with_tensors=True)
        return summarize_workload(predictor, Knobs(**knobs), card_named("rtx-3090"), batch_size)

    return call


@pytest.fixture(scope="module")
def davenet(summarized):
    return summarized("davenet", 128)


def megabytes(num_bytes):
    return f"{num_bytes / MIB:.2f}"


def named(difference):
    return {term.name: term for term in difference.terms}


def test_the_notebook_s_numbers_come_out_to_the_digit(davenet):
    audio, image = davenet.summary.parts
    assert (audio.name, image.name) == ("audio", "image")
    assert megabytes(image.total_bytes) == "28273.64"
    assert megabytes(audio.total_bytes) == "1400.90"
    assert megabytes(davenet.summary.total_bytes) == "29674.54"


def test_the_audio_branch_takes_the_notebook_s_bytes_for_a_sample(summarized):
    (audio,) = summarized("davenet-audio", 1).summary.parts
    sizes = (audio.input_bytes, audio.forward_backward_bytes, audio.parameter_bytes)
    assert [megabytes(size) for size in sizes] == ["0.16", "10.31", "60.90"]


def test_resnet50_has_the_sizes_that_torchsummary_is_known_to_print_of_it(summarized):
    (part,) = summarized("resnet50", 1).summary.parts
    sizes = (part.input_bytes, part.forward_backward_bytes, part.parameter_bytes, part.total_bytes)
    assert [megabytes(size) for size in sizes] == ["0.57", "286.56", "97.49", "384.62"]


def test_layers_are_listed_as_the_notebook_lists_them(davenet):
    rows = davenet.summary.parts[1].rows
    listed = [(row.name, row.output_shapes, row.num_parameters) for row in rows[:6]]
    assert listed == [
        ("Conv2d-1", ((128, 64, 224, 224),), 1792),
        ("ReLU-2", ((128, 64, 224, 224),), 0),
        ("Conv2d-3", ((128, 64, 224, 224),), 36928),
        ("ReLU-4", ((128, 64, 224, 224),), 0),
        ("MaxPool2d-5", ((128, 64, 112, 112),), 0),
        ("Conv2d-6", ((128, 128, 112, 112),), 73856),
    ]
    assert len(rows) == 31


def test_the_account_from_the_summary_to_the_simulated_peaks_adds_up_to_the_byte(davenet):
    difference, estimate = davenet.difference, davenet.estimate
    told = difference.summary_bytes + sum(term.num_bytes for term in difference.terms)
    assert told == difference.allocated_bytes == estimate.peak_allocated_bytes
    assert told + difference.unused_bytes == difference.reserved_bytes == estimate.peak_reserved_bytes
    assert difference.reserved_bytes + difference.context_bytes == estimate.device_peak_bytes


def test_relus_in_place_are_counted_twice_by_a_summary(davenet):
    relus = [row for row in davenet.summary.rows if row.layer.module_type == "ReLU"]
    in_place = named(davenet.difference)["outputs in place or views"]
    assert in_place.num_bytes == -4 * sum(row.num_elements for row in relus)
    assert in_place.note.endswith("13× ReLU")


def test_each_term_is_what_the_estimate_has_of_it(davenet):
    terms, breakdown = named(davenet.difference), davenet.estimate.breakdown
    assert terms["optimizer state"].num_bytes == breakdown.optimizer_state
    assert terms["workspace"].num_bytes == breakdown.workspace
    summary = davenet.summary
    assert terms["parameters and buffers"].num_bytes == breakdown.parameters - summary.parameter_bytes


def test_blocks_are_layers_and_sequences_and_the_model_are_not(summarized):
    (part,) = summarized("net", 8).summary.parts
    assert [row.name for row in part.rows] == [
        "Linear-1", "ReLU-2", "Block-3", "Linear-4", "ReLU-5", "Block-6", "Linear-7", "Flatten-8",
    ]  # fmt: skip
    assert part.module_type == "Net"


def test_parameters_count_once_a_call_and_only_by_their_usual_names(summarized):
    answer = summarized("net", 8)
    assert answer.summary.num_parameters == 2 * (64 * 64 + 64) + 64 * 32
    real = (64 * 64 + 64 + 64 * 32 + 32 + 32) * 4
    term = named(answer.difference)["parameters and buffers"]
    assert term.num_bytes == real - answer.summary.parameter_bytes


def test_the_model_s_input_counts_and_labels_do_not(summarized):
    answer = summarized("net", 8)
    assert answer.summary.input_bytes == 8 * 64 * 4


def test_what_a_layer_passes_on_or_changes_in_place_is_told_apart(summarized):
    terms = named(summarized("net", 256).difference)
    assert terms["blocks that pass on an output"].num_bytes == -2 * 256 * 64 * 4
    assert terms["outputs in place or views"].num_bytes == -(2 * 64 + 32) * 256 * 4
    assert "2× ReLU, 1× Flatten" in terms["outputs in place or views"].note


def test_a_model_of_one_layer_lists_it(summarized):
    (part,) = summarized("layer", 4).summary.parts
    assert [(row.name, row.output_shapes) for row in part.rows] == [("Linear-1", ((4, 32),))]


@pytest.mark.parametrize("changes", [{"mode": "infer"}, {"precision": "bf16"}, {"precision": "amp-bf16"}])
def test_the_account_adds_up_whatever_the_step_is(summarized, changes):
    answer = summarized("net", 64, **changes)
    told = answer.difference.summary_bytes + sum(term.num_bytes for term in answer.difference.terms)
    assert told == answer.estimate.peak_allocated_bytes
    assert answer.summary.total_bytes == summarized("net", 64).summary.total_bytes


def test_layers_that_run_again_in_backward_are_listed_once(summarized):
    plain, checkpointed = (summarized("blocks", 64, checkpointing=value) for value in ("none", "blocks"))
    rows = [(row.name, row.output_shapes) for row in checkpointed.summary.rows]
    assert rows == [(row.name, row.output_shapes) for row in plain.summary.rows]
    assert checkpointed.summary.total_bytes == plain.summary.total_bytes


def test_a_profile_that_lists_no_layers_has_an_empty_summary(summarized, state):
    predictor = local_predictor(refer("davenet-audio"))
    profile = predictor.profile(Knobs(), card_named("t4"), 2)
    summary = summarize(profile.trace)
    assert (summary.total_bytes, summary.rows) == (0, ())
    difference = explain_difference(summary, profile)
    assert sum(term.num_bytes for term in difference.terms) == profile.peak_allocated_bytes
