"""The vocabulary of coordinator and workers: it survives its journeys and refuses what it does not know."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.allocator import ALLOCATORS
from autofit_workers.spec.knobs.base import BASES
from autofit_workers.spec.knobs.cache import CACHES
from autofit_workers.spec.knobs.checkpointing import CHECKPOINTINGS
from autofit_workers.spec.knobs.conv_algo import CONV_ALGO_NAMES, CONV_ALGOS
from autofit_workers.spec.knobs.kernels import ALL_KERNELS
from autofit_workers.spec.knobs.loss import LOSSES
from autofit_workers.spec.knobs.memory_format import MEMORY_FORMATS
from autofit_workers.spec.knobs.optimizer import OPTIMIZERS
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import (
    PROTOCOL_VERSION,
    Device,
    Evidence,
    Heartbeat,
    Peaks,
    Probe,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import BATCH_KINDS, MODES, Setup
from autofit_workers.spec.workloads.tasks import TASK_NAMES

sizes = st.none() | st.integers(min_value=0, max_value=1 << 50)
seconds = st.none() | st.floats(min_value=0, max_value=1e6)
peaks = st.builds(Peaks, sizes, sizes, sizes)
knobs = st.builds(
    Knobs,
    conv_algo=st.sampled_from([*CONV_ALGOS, "chunked:8", "cudnn-capped:64"]),
    precision=st.sampled_from(PRECISIONS),
    memory_format=st.sampled_from(MEMORY_FORMATS),
    optimizer=st.none() | st.sampled_from(OPTIMIZERS),
    optimizer_impl=st.sampled_from(OPTIMIZER_IMPLS),
    set_to_none=st.booleans(),
    checkpointing=st.sampled_from([*CHECKPOINTINGS, "every:2", "selective:50"]),
    allocator=st.sampled_from([*ALLOCATORS, "max_split:64"]),
    grad_accumulation=st.integers(1, 64),
    compile=st.booleans(),
    activation_budget=st.none() | st.floats(0, 1),
    adapter=st.none() | st.sampled_from(["lora:r=16", "ia3", "lora:r=4,targets=q,v,use_dora=true"]),
    base=st.none() | st.sampled_from(BASES),
    seq_len=st.none() | st.integers(1, 1 << 20),
    new_tokens=st.none() | st.integers(1, 1 << 20),
    cache=st.sampled_from(CACHES),
    num_beams=st.integers(1, 16),
    clip_grad_norm=st.none() | st.floats(0, 1e9, exclude_min=True),
    optimizer_in_backward=st.booleans(),
    kernels=st.sampled_from(ALL_KERNELS),
    loss=st.sampled_from([*LOSSES, "chunked:8"]),
    batch_layout=st.sampled_from(["full", "padded:25", "packed:4", "padding-free", "padding-free:2"]),
)
specs = st.builds(
    TrialSpec,
    workload=st.builds(
        WorkloadRef,
        kind=st.sampled_from(["builtin", "import", "file", "pickle"]),
        target=st.text(),
        input_shape=st.none() | st.lists(st.integers(1, 512)).map(tuple),
        num_classes=st.none() | st.integers(1, 1000),
        task=st.none() | st.sampled_from(TASK_NAMES),
        search_path=st.lists(st.text()).map(tuple),
    ),
    batch_size=st.integers(1, 65536),
    probe=st.sampled_from(Probe),
    knobs=knobs,
    setup=st.builds(Setup, mode=st.none() | st.sampled_from(MODES), batch_kind=st.sampled_from(BATCH_KINDS)),
    budget_bytes=sizes,
)
outcomes = st.builds(
    TrialOutcome,
    verdict=st.sampled_from(Verdict),
    evidence=st.sampled_from(Evidence),
    device=st.builds(Device, kind=st.sampled_from(["cuda", "cpu"]), name=st.text()),
    batch_size=st.integers(1, 65536),
    knobs=knobs,
    first_step=peaks,
    steady=peaks,
    evaluation=peaks,
    checkpoint=peaks,
    step_seconds=seconds,
    error=st.none() | st.builds(TrialError, kind=st.just("user"), message=st.text()),
    environment=st.dictionaries(st.text(), st.text()),
    trace_json=st.none() | st.text(),
)


def outcome(**fields) -> TrialOutcome:
    common = {
        "verdict": Verdict.FITS,
        "evidence": Evidence.MEASURED,
        "device": Device(kind="cuda", name="a card"),
        "batch_size": 8,
        "knobs": Knobs(),
    }
    return TrialOutcome(**{**common, **fields})


@given(specs)
def test_a_spec_is_the_same_after_its_journey(spec):
    assert TrialSpec.from_json(spec.to_json()) == spec


@given(
    st.builds(
        Heartbeat, phase=st.text(), device=st.none() | st.builds(Device, kind=st.text(), name=st.text())
    )
)
def test_a_heartbeat_is_the_same_after_its_journey(beat):
    assert Heartbeat.from_json(beat.to_json()) == beat


@given(outcomes)
def test_an_outcome_is_the_same_after_its_journey(outcome):
    assert TrialOutcome.from_json(outcome.to_json()) == outcome


@given(specs)
def test_a_message_is_one_line(spec):
    assert "\n" not in spec.to_json()


def test_a_message_of_another_version_is_refused_by_name():
    spec = TrialSpec(workload=WorkloadRef(kind="builtin", target="vgg16"), batch_size=1, probe=Probe.CPU)
    text = json.dumps({**json.loads(spec.to_json()), "schema": "autofit.trial-spec/99"})
    expected = (
        rf"expected a message of schema autofit\.trial-spec/{PROTOCOL_VERSION}, got 'autofit\.trial-spec/99'"
    )
    with pytest.raises(ValueError, match=expected):
        TrialSpec.from_json(text)
    with pytest.raises(ValueError, match=r"autofit\.trial-outcome/\d+, got 'autofit\.trial-spec/\d+'"):
        TrialOutcome.from_json(spec.to_json())


@pytest.mark.parametrize(
    ("knob", "value", "choices"),
    [
        ("conv_algo", "winograd", ", ".join(CONV_ALGO_NAMES)),
        ("precision", "fp8", "fp32, ieee-fp32, tf32, amp-fp16, amp-bf16, bf16"),
        ("memory_format", "nhwc", "contiguous, channels_last"),
        ("optimizer_impl", "apex", "default, foreach, fused, loop"),
        ("optimizer", "lamb", ", ".join(OPTIMIZERS)),
    ],
)
def test_a_knob_takes_its_own_values_and_names_them(knob, value, choices):
    with pytest.raises(ValueError, match=f"^{knob}: '{value}' is not one of {choices}$"):
        Knobs(**{knob: value})


def test_gradients_are_dropped_or_not():
    with pytest.raises(ValueError, match=r"^set_to_none: expected bool, got 'no'$"):
        Knobs(set_to_none="no")
    with pytest.raises(ValueError, match=r"^compile: expected bool, got 'yes'$"):
        Knobs(compile="yes")


@pytest.mark.parametrize("norm", [0, -1.0, "none", True, float("nan"), float("inf")])
def test_gradients_are_clipped_to_a_number_above_0(norm):
    with pytest.raises(ValueError, match=r"^clip_grad_norm: .* is not a number above 0$"):
        Knobs(clip_grad_norm=norm)
    assert Knobs(clip_grad_norm=1) == Knobs(clip_grad_norm=1.0)


def test_a_record_from_before_there_was_a_knob_has_its_default():
    reference = WorkloadRef(kind="builtin", target="gpt2")
    data = json.loads(TrialSpec(workload=reference, batch_size=1, probe=Probe.PREDICT).to_json())
    for name in ("clip_grad_norm", "optimizer_in_backward", "adapter", "base", "kernels", "loss"):
        del data["knobs"][name]
    assert TrialSpec.from_json(json.dumps(data)).knobs == Knobs()


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        ("checkpointing", "some", "'some' is not one of none, blocks, blocks-reentrant, "),
        ("checkpointing", "every", "every needs a number of blocks of 1 or more, as in every:4"),
        ("checkpointing", "every:0", "every:0 needs a number of blocks of 1 or more"),
        ("checkpointing", "selective:101", "selective:101 needs a number of percent from 1 to 100"),
        ("checkpointing", "blocks:2", "'blocks:2' is not one of none"),
        ("loss", "liger", "'liger' is not one of full, chunked, fused, chunked:N"),
        ("loss", "chunked:0", "chunked:0 needs a number of chunks of 1 or more, as in chunked:8"),
        ("batch_layout", "padded", "padded needs a number of percent from 1 to 99, as in padded:25"),
        ("batch_layout", "packed:1", "packed:1 needs a number of sequences a sample of 2 or more"),
        ("batch_layout", "ragged", "'ragged' is not one of full, padded:PERCENT, packed:N, padding-free"),
        ("allocator", "max_split", "max_split needs a number of MiB of 21 or more"),
        ("allocator", "max_split:20", "max_split:20 needs a number of MiB of 21 or more"),
        ("allocator", "expandable", "'expandable' is not one of default, expandable_segments, max_split:N"),
        ("grad_accumulation", 0, "0 is not a whole number of 1 or more"),
        ("grad_accumulation", None, "give a number of batches, or a global_batch that decides it"),
        ("global_batch", True, "True is not a whole number of 1 or more"),
    ],
)
def test_a_knob_with_a_number_says_which_it_takes(knob, value, message):
    with pytest.raises(ValueError, match=f"^{knob}: {re.escape(message)}"):
        Knobs(**{knob: value})


def test_a_global_batch_decides_how_often_it_is_accumulated():
    knobs = Knobs(global_batch=48)
    assert knobs.grad_accumulation is None
    assert Knobs(**knobs.to_dict()) == knobs
    assert [knobs.num_batches(size) for size in (48, 24, 1)] == [1, 2, 48]
    assert [knobs.num_passes(size) for size in (48, 24, 1)] == [1, 2, 2]
    with pytest.raises(ValueError, match="give one of them"):
        Knobs(global_batch=48, grad_accumulation=2)
    reference = WorkloadRef(kind="builtin", target="vgg16")
    with pytest.raises(ValueError, match="batch size 5 does not divide the global batch of 48"):
        TrialSpec(workload=reference, batch_size=5, probe=Probe.CPU, knobs=knobs)


def test_samples_a_second_are_those_of_all_batches_that_a_trial_took():
    accumulated = outcome(step_seconds=2.0, knobs=Knobs(grad_accumulation=16))
    assert (outcome(step_seconds=2.0).samples_per_second, accumulated.samples_per_second) == (4.0, 8.0)


def test_knobs_are_named_in_json_one_by_one():
    assert Knobs(precision="tf32", set_to_none=False).to_dict() == {
        "conv_algo": "cudnn",
        "precision": "tf32",
        "memory_format": "contiguous",
        "optimizer": None,
        "optimizer_impl": "default",
        "set_to_none": False,
        "checkpointing": "none",
        "allocator": "default",
        "grad_accumulation": 1,
        "global_batch": None,
        "compile": False,
        "activation_budget": None,
        "attention": "default",
        "adapter": None,
        "base": None,
        "clip_grad_norm": None,
        "seq_len": None,
        "new_tokens": None,
        "cache": "dynamic",
        "num_beams": 1,
        "optimizer_in_backward": False,
        "kernels": "default",
        "loss": "full",
        "batch_layout": "full",
    }


@pytest.mark.parametrize(
    ("name", "least"),
    [("batch_size", 1), ("num_steps", 1), ("num_warmup_steps", 0), ("heartbeat_seconds", 2)],
)
def test_a_trial_has_a_sample_a_step_and_time_to_be_heard(name, least):
    reference = WorkloadRef(kind="builtin", target="vgg16")
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {least - 1}"):
        TrialSpec(workload=reference, **{"batch_size": 1, "probe": Probe.CPU, name: least - 1})


def test_a_mode_is_training_or_inference_or_generation():
    with pytest.raises(ValueError, match="mode must be one of train, infer, generate; got 'eval'"):
        Setup(mode="eval")


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_trial_that_ran_says_something_about_the_size(verdict):
    assert verdict.is_about_memory == (verdict in ("FITS", "OOM", "THRASH"))


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        (WorkloadRef(kind="builtin", target="resnet50"), "resnet50"),
        (WorkloadRef(kind="import", target="pkg.mod:net"), "pkg.mod:net"),
        (WorkloadRef(kind="file", target="/home/user/nets/small.py:net"), "small.py:net"),
    ],
)
def test_a_workload_has_a_short_name(reference, name):
    assert reference.name == name


def test_the_peaks_of_a_trial_are_the_largest_of_all_that_was_run_each_for_itself():
    trial = outcome(first_step=Peaks(10, 40, None), steady=Peaks(20, 30, None))
    assert trial.peaks == Peaks(20, 40, None)
    later = dataclasses.replace(trial, evaluation=Peaks(None, 50, 7), checkpoint=Peaks(15, None, 8))
    assert later.peaks == Peaks(20, 50, 8)


@pytest.mark.parametrize(("kind", "budgeted"), [("cuda", 40), ("cpu", 50)])
def test_reserved_memory_counts_on_a_gpu_and_resident_memory_on_a_cpu(kind, budgeted):
    trial = outcome(device=Device(kind=kind, name="a device"), steady=Peaks(10, 40, 50))
    assert trial.budgeted_bytes == budgeted


def test_throughput_needs_a_step_time():
    assert outcome(step_seconds=0.5).samples_per_second == 16
    assert outcome(step_seconds=None).samples_per_second is None


def test_a_spec_cannot_be_changed_on_its_way():
    spec = TrialSpec(workload=WorkloadRef(kind="builtin", target="vgg16"), batch_size=1, probe=Probe.CPU)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.batch_size = 2


def test_the_vocabulary_needs_the_standard_library_alone():
    names = ("spec.protocol", "spec.trace", "replay.curve.peak_curve", "trials.door")
    modules = ", ".join(f"autofit_workers.{name}" for name in names)
    code = f"import sys, {modules}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]
