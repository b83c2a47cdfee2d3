"""Whatever a trial's process says or does not say, the trial has a verdict."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from autofit_workers.process.messages import told
from autofit_workers.spec.documents import MOST_BYTES
from autofit_workers.spec.protocol import (
    DECIDED,
    Device,
    Evidence,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.trials.child import answer
from autofit_workers.trials.isolate import Child, environment_of
from autofit_workers.trials.run import _decided

_WORKLOADS = """
import os, sys, torch
from autofit_workers.workload import Workload


class Own(BaseException):
    pass


class Mute(Exception):
    def __str__(self):
        raise Own("even its text")


class NoText(Exception):
    def __str__(self):
        return 7


def workload(loss):
    return Workload(
        build_model=lambda: torch.nn.Linear(64, 8),
        make_batch=lambda batch_size, device: torch.ones(batch_size, 64, device=device),
        loss=loss,
        optimizer="adam",
    )


def raising(make):
    def loss(model, batch):
        raise make()
    return workload(loss)


def pipe():
    return max(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
               and os.readlink(f"/proc/self/fd/{name}").startswith("pipe"))


def saying(text):
    def loss(model, batch):
        fd = pipe()
        data = memoryview(text)
        while data:
            data = data[os.write(fd, data):]
        os._exit(0)
    return workload(loss)


system_exit = raising(lambda: SystemExit("a" * 50_000_000))
interrupt = raising(KeyboardInterrupt)
generator_exit = raising(GeneratorExit)
own = raising(lambda: Own("mine"))
mute = raising(Mute)
no_text = raising(NoText)
long = raising(lambda: ValueError("a" * 50_000_000))
lines = raising(lambda: ValueError("line\\n" * 10_000_000))
syntax = raising(lambda: SyntaxError("odd", (7, "seven", None, object())))
halves = raising(lambda: ValueError("\\ud800 half"))
nested = saying(b"[" * 100_000 + b"\\n")
half = saying(b'{"schema":"autofit.trial-outcome/8","verdict":"FITS"}\\n')
no_object = saying(b"[1, 2]\\n")
bytes_of_all_kinds = saying(bytes(range(256)).replace(b"\\n", b"") + b"\\n")
endless = saying(b"a" * (50 << 20))
"""


@pytest.fixture
def spec(tmp_path: Path):
    path = tmp_path / "wicked.py"
    path.write_text(_WORKLOADS)

    def of(attribute: str) -> TrialSpec:
        reference = WorkloadRef(kind="file", target=f"{path}:{attribute}")
        return TrialSpec(workload=reference, batch_size=2, probe=Probe.CPU)

    return of


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("system_exit", "SystemExit: aaa"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator_exit", "GeneratorExit"),
        ("own", "Own: mine"),
        ("mute", "Mute: (its text cannot be made: Own)"),
        ("no_text", "NoText: (its text cannot be made: TypeError)"),
        ("long", "ValueError: aaa"),
        ("lines", "ValueError: line"),
        ("syntax", "SyntaxError: odd"),
        ("halves", "half"),
    ],
)
def test_whatever_a_workload_raises_is_its_own_failure_told_in_short(spec, attribute, said):
    text = answer(spec(attribute).to_json()).to_json()
    outcome = TrialOutcome.from_json(text)
    assert (outcome.verdict, outcome.error.kind) == (Verdict.FAILED, "user")
    assert said in outcome.error.message
    assert len(text) < 100_000
    assert "\n" not in outcome.error.message


@pytest.mark.process
@pytest.mark.parametrize(
    ("attribute", "advice"),
    [
        ("nested", "levels deep: its trace is too large"),
        ("half", "install autofit here again"),
        ("no_object", "install autofit here again"),
        ("bytes_of_all_kinds", "install autofit here again"),
        ("endless", "of the trial's process"),  # a heartbeat may be in the midst of it
    ],
)
def test_what_is_no_outcome_is_a_lost_trial(spec, attribute, advice):
    with Child(environment_of(spec(attribute))) as child:
        outcome = child.run(spec(attribute))
    assert outcome.verdict is Verdict.LOST
    assert outcome.error.kind == "protocol"
    assert advice in outcome.error.message
    assert len(outcome.error.message) < 1000


def test_the_longest_answer_is_longer_than_any_trace():
    assert MOST_BYTES == 48 << 20


def test_a_chain_of_causes_that_never_ends_is_told():
    error = ValueError("first")
    for number in range(5_000):
        cause = error
        error = ValueError(str(number))
        error.__cause__ = cause
    assert told(error).message.startswith("ValueError: 4999")


def _outcome(**environment: str) -> TrialOutcome:
    return TrialOutcome(
        verdict=Verdict.FAILED,
        evidence=Evidence.PREDICTED,
        device=Device(kind="cuda", name="sm_80"),
        batch_size=1,
        knobs=TrialSpec(
            workload=WorkloadRef(kind="builtin", target="x"), batch_size=1, probe=Probe.PREDICT
        ).knobs,
        environment=environment,
    )


@pytest.mark.parametrize("text", ["", "7", "[7]", "{}", "[" * 5000, '[["a"]]'])
def test_places_that_make_no_sense_are_none(text):
    assert _decided(_outcome(**{DECIDED: text})) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "MAYBE"},
        {"device": None},
        {"device": {"kind": "cuda"}},
        {"batch_size": "8"},
        {"batch_size": True},
        {"knobs": {"conv_algo": ["cudnn"]}},
        {"steady": {"reserved_bytes": "much"}},
        {"environment": {"a": 7}},
        {"trace_json": {}},
        {"error": "none"},
        {"step_seconds": float("inf")},
    ],
)
def test_an_outcome_of_which_a_part_is_wrong_is_none(change):
    plain = json.loads(dataclasses.replace(_outcome(), verdict=Verdict.FITS).to_json())
    with pytest.raises(ValueError):
        TrialOutcome.from_json(json.dumps({**plain, **change}))
