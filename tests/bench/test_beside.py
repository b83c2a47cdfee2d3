"""What others say of a run: the tracker counts what lives, the rules know weights alone."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import nn

from autofit_workers.workload.workload import Workload
from tests.bench.language.beside import ACCELERATE, SIXTEEN, TRACKER, said_by_others
from tests.bench.language.runs import Run

WIDTH = 256
NUM_WEIGHTS = WIDTH * WIDTH
STAGES = ("allocated after the model", "allocated after backward")

pytest.importorskip("accelerate")
pytestmark = pytest.mark.process  # tracing gives its process a GPU that is not there


def run(mode: str = "train") -> Run:
    workload = Workload(
        build_model=lambda: nn.Linear(WIDTH, WIDTH, bias=False),
        make_batch=lambda size, device: torch.zeros(size, WIDTH, device=device),
        loss=lambda model, batch: model(batch).sum(),
        optimizer="sgd",
        mode=mode,
    )
    return Run(
        table="of a test",
        name=mode,
        group="linear",
        make=lambda: workload,
        batch_size=4,
        architecture="sm_80",
        measured=dict.fromkeys(("allocated peak", *STAGES), 1),
    )


def last_said(*modes: str) -> dict[str, dict[str, int]]:
    """What is said of the last of these runs."""
    return [said_by_others(run(mode)) for mode in modes][-1]


def asked(*modes: str) -> dict[str, dict[str, int]]:
    """The same from a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(last_said, *modes).result()


def test_the_tracker_is_read_at_the_stage_that_was_measured_and_rules_say_one_number():
    said = asked("train")
    model, backward = (said[TRACKER][stage] for stage in STAGES)
    assert model == 2 * 4 * NUM_WEIGHTS + 4 * 4 * WIDTH  # with the gradients of the step before, and a batch
    assert said[TRACKER]["allocated peak"] >= backward > 2 * 4 * NUM_WEIGHTS
    assert set(said[SIXTEEN].values()) == {16 * NUM_WEIGHTS}
    assert set(said[ACCELERATE].values()) == {4 * 4 * NUM_WEIGHTS}


def test_runs_before_are_not_counted_again_and_of_inference_rules_say_the_weights():
    said = asked("train", "infer")
    assert said[TRACKER]["allocated peak"] < 2 * 4 * NUM_WEIGHTS
    assert set(said[SIXTEEN].values()) == set(said[ACCELERATE].values()) == {4 * NUM_WEIGHTS}
