"""A generation, known from its first passes, takes what transformers' own `generate` takes on the CPU."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autofit_workers.replay.curve.unrolled import unrolled
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.run import run
from autofit_workers.workload.generation import Generate
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.workload import resolve

pytest.importorskip("transformers")

needs_quanto = pytest.mark.skipif(
    not {*packages_distributions().get("optimum", ())} & {"optimum-quanto"},
    reason="needs optimum-quanto: pip install -c constraints.txt optimum-quanto",
)
GENERATE = Setup(mode="generate")
PROMPT, BATCH_SIZE = 24, 2
CPU = torch.device("cpu")
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}


_SLIDING = {**TINY, "sliding_window": 32, "head_dim": 16}
OTHERS = {
    "mistral": {**_SLIDING, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "gemma2": {**_SLIDING, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]},
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 128,
        "is_encoder_decoder": True,
    },
}


def configured(folder: Path, config: dict[str, object]) -> WorkloadRef:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return parse_reference(f"hf:{path}")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return configured(tmp_path_factory.mktemp("tiny"), TINY)


def knobs_of(**values: object) -> Knobs:
    return Knobs(seq_len=PROMPT, **{"new_tokens": 40, **values})


def spec_of(reference, knobs) -> TrialSpec:
    return TrialSpec(
        workload=reference,
        batch_size=BATCH_SIZE,
        probe=Probe.PREDICT,
        knobs=knobs,
        setup=GENERATE,
        architecture=HOST_ARCHITECTURE,
    )


def traced(reference, knobs) -> Trace:
    outcome = run(spec_of(reference, knobs))
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


def traced_longer(reference, knobs, num_passes: int, folder: Path) -> Trace:
    """With so many passes followed, in a process of its own."""
    code = (
        "import sys; from pathlib import Path; from autofit_workers.tracing.recording import generation; "
        f"generation.NUM_TRACED_PASSES = {num_passes}; from autofit_workers.tracing.probe import predict; "
        "from autofit_workers.spec.protocol import TrialSpec; "
        "outcome = predict(TrialSpec.from_json(sys.argv[1])); "
        "Path(sys.argv[2]).write_text(outcome.trace_json)"
    )
    file = folder / "trace.json"
    subprocess.run([sys.executable, "-c", code, spec_of(reference, knobs).to_json(), str(file)], check=True)
    return Trace.from_json(file.read_text())


def predicted_peak(reference, knobs) -> int:
    trace = traced(reference, knobs)
    events, sizes = unrolled(trace, [allocation.num_bytes for allocation in trace.allocations])
    changes = [sizes[event] if event >= 0 else -sizes[~event] for event in events]
    start = next(mark.position for mark in trace.marks if mark.name == "step 1 input")
    return max(itertools.accumulate(changes[start:]))


def peak_on_cpu(reference, knobs) -> int:
    """By the CPU allocator's own report."""
    workload = with_overrides(resolve(reference), knobs, GENERATE)
    model = workload.build_model().eval()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, torch.no_grad():
        workload.loss(model, workload.make_batch(BATCH_SIZE, CPU))
    events = (e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]")
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


@pytest.mark.parametrize("changes", [{}, {"cache": "static"}, {"num_beams": 3}])
def test_the_peak_of_all_passes_is_that_of_a_real_generation(reference, changes):
    is_that_of_a_real_generation(reference, knobs_of(**changes))


@needs_quanto
@pytest.mark.parametrize("new_tokens", [40, 140])  # before and after it is quantized anew
def test_a_quantized_cache_is_packed(reference, new_tokens):
    is_that_of_a_real_generation(reference, knobs_of(cache="quantized", new_tokens=new_tokens))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", OTHERS)
def test_so_is_that_of_sliding_windows_and_of_an_encoder_beside(name, cache, tmp_path):
    is_that_of_a_real_generation(configured(tmp_path, OTHERS[name]), knobs_of(cache=cache))


def is_that_of_a_real_generation(reference, knobs) -> None:
    predicted, real = predicted_peak(reference, knobs), peak_on_cpu(reference, knobs)
    assert abs(predicted / real - 1) < 0.02, (predicted, real)


@needs_quanto
@pytest.mark.parametrize("name", ["mistral", "t5"])
def test_a_cache_that_transformers_refuses_to_a_model_is_told(name, tmp_path):
    outcome = run(spec_of(configured(tmp_path, OTHERS[name]), knobs_of(cache="quantized")))
    assert outcome.error is not None
    assert outcome.error.kind == "inapplicable"
    assert "cannot generate with --cache quantized: " in outcome.error.message


def test_a_quantized_cache_is_followed_for_so_many_tokens(reference):
    setup = Setup(mode="generate", allows_long=True)
    spec = dataclasses.replace(spec_of(reference, knobs_of(cache="quantized", new_tokens=500)), setup=setup)
    outcome = run(spec)
    assert outcome.error is not None
    assert "ask for at most so many --new-tokens" in outcome.error.message


def test_passes_beyond_the_traced_ones_are_those_that_a_longer_trace_has(reference, tmp_path):
    known = traced(reference, knobs_of())
    whole = traced_longer(reference, knobs_of(new_tokens=60), 40, tmp_path)
    assert (known.repetition.times, whole.repetition.times) == (34, 20)
    events, sizes = unrolled(known, [allocation.num_bytes for allocation in known.allocations])
    assert tuple(events) == whole.events
    assert sizes == [allocation.num_bytes for allocation in whole.allocations]


def test_a_trace_of_a_generation_is_read_back_with_its_repetition(reference):
    text = traced(reference, knobs_of()).to_json()
    assert Trace.from_json(text).repetition is not None
    assert Trace.from_json(text).to_json() == text


@pytest.mark.parametrize(
    ("setup", "changes", "message"),
    [
        (Setup(), {}, "--new-tokens is for generation"),
        (Setup(mode="infer"), {"new_tokens": None, "cache": "static"}, "--cache is for generation"),
        (GENERATE, {"new_tokens": None}, "needs the number of tokens"),
        (GENERATE, {"new_tokens": 233}, "beyond the 256 positions"),
    ],
)
def test_what_no_generation_can_do_is_said_before_it_runs(reference, setup, changes, message):
    with pytest.raises(InapplicableError, match=message):
        with_overrides(resolve(reference), knobs_of(**changes), setup)


def test_more_tokens_than_positions_are_allowed_where_asked_for(reference):
    setup = Setup(mode="generate", allows_long=True)
    assert with_overrides(resolve(reference), knobs_of(new_tokens=233), setup).mode == "generate"


def test_a_model_without_a_head_for_the_next_token_cannot_generate():
    with pytest.raises(InapplicableError, match="x cannot generate"):
        Generate(knobs_of(), "x")(torch.nn.Linear(1, 1), {})
