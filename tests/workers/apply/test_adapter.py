"""Adapters of peft on models: what is trained, what is predicted of it, and what is refused."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autofit_workers.apply import torchao_weights
from autofit_workers.apply.adapter import with_adapter
from autofit_workers.apply.base import library, prepared, with_base
from autofit_workers.apply.checkpointing import checkpoint_blocks
from autofit_workers.apply.setting import adapted_model, import_libraries
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict
from autofit_workers.spec.trace import Category, Trace
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.run import run
from autofit_workers.workload.libraries.importing import imported

# What peft asks of transformers has a new name there.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
# As autofit imports them, beside a torchvision that may be of another PyTorch.
for name in ("peft", "transformers", "bitsandbytes"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
transformers = imported("transformers", "a test")
HIDDEN, INNER, NUM_LAYERS, VOCABULARY, RANK = 128, 256, 2, 512, 4
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps(CONFIG))
    return file


def traced(config: Path, **knobs: str) -> Trace:
    spec = TrialSpec(
        workload=parse_reference(f"hf:{config}"),
        batch_size=2,
        probe=Probe.PREDICT,
        knobs=Knobs(seq_len=16, **knobs),
    )
    outcome = run(spec)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert outcome.trace_json is not None
    return Trace.from_json(outcome.trace_json)


def live_bytes(trace: Trace, category: Category) -> int:
    alive: set[int] = set()
    for event in trace.events:
        alive = alive | {event} if event >= 0 else alive - {~event}
    return sum(trace.allocations[i].num_bytes for i in alive if trace.allocations[i].category is category)


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"})
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("method", ["lora", "dora", "ia3", "vera", "prompt_tuning:num_virtual_tokens=4"])
def test_the_optimizer_keeps_states_of_the_adapter_alone(config: Path, method: str):
    real = with_adapter(llama(), method)
    num_trained = sum(p.numel() for p in real.parameters() if p.requires_grad)
    states = live_bytes(traced(config, adapter=method), Category.OPTIMIZER_STATE)
    num_tensors = sum(p.requires_grad for p in real.parameters())
    assert 0 <= states - 2 * 4 * num_trained <= 4 * num_tensors  # AdamW counts its steps per tensor


def test_base_weights_are_kept_in_bfloat16_beside_an_adapter_in_float32(config: Path):
    num_trained = 2 * NUM_LAYERS * 2 * HIDDEN * RANK
    adapter = f"lora:r={RANK},targets=q,v"
    full = live_bytes(traced(config), Category.PARAMETER)
    found = live_bytes(traced(config, adapter=adapter, base="bf16"), Category.PARAMETER)
    assert found == full // 2 + 4 * num_trained
    all_half = traced(config, adapter=adapter, base="bf16", precision="bf16")
    assert live_bytes(all_half, Category.PARAMETER) == full // 2 + 2 * num_trained


@pytest.mark.parametrize(
    ("base", "bytes_an_element"),
    [("nf4", 1 / 2 + 4 / 64), ("nf4-dq", 1 / 2 + 1 / 64 + 4 / (64 * 256)), ("int8", 1)],
)
def test_quantized_layers_are_there_in_so_many_bytes_an_element(
    config: Path, base: str, bytes_an_element: float
):
    layers = NUM_LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    num_trained = 2 * NUM_LAYERS * 2 * HIDDEN * RANK
    others = 2 * VOCABULARY * HIDDEN + (2 * NUM_LAYERS + 1) * HIDDEN
    trace = traced(config, adapter=f"lora:r={RANK},targets=q,v", base=base)
    found = live_bytes(trace, Category.PARAMETER) - 4 * (others + num_trained)
    # Beside them stand scales of rows (int8) and the tables of quantized values.
    assert bytes_an_element * layers <= found <= bytes_an_element * layers + 60_000


def test_a_quantized_model_is_trained_on_the_cpu_too():
    knobs = Knobs(adapter="lora:r=4", base="nf4")
    model = adapted_model(with_base(llama(), knobs).to("cpu"), knobs)
    tokens = torch.ones(2, 8, dtype=torch.int64)
    model(input_ids=tokens, labels=tokens).loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)


def test_the_weights_of_quantized_layers_are_not_converted_with_the_others():
    knobs = Knobs(adapter="lora", base="int8")
    model = prepared(with_base(llama(), knobs), knobs)
    types = {type(each).__name__: each.weight.dtype for each in model.modules() if hasattr(each, "weight")}
    assert types["Linear8bitLt"] is torch.float16
    assert types["Embedding"] is types["LlamaRMSNorm"] is torch.float32


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("lara", "peft has no method lara: did you mean lora"),
        ("lora:alhpa=3", "the adapter method lora takes no alhpa: did you mean"),
        ("lora:targets=quer_proj", "no layer .* named quer_proj: did you mean q_proj"),
        ("lora:targets=zzz", "use all-linear, or the name of a layer"),
        ("adalora", "peft does not put adalora on this model: AdaLoRA does not work when `total_step`"),
    ],
)
def test_what_peft_or_the_model_has_not_is_said_with_what_is_near(adapter: str, said: str):
    with pytest.raises(InapplicableError, match=said) as raised:
        with_adapter(llama(), adapter)
    assert "\n" not in str(raised.value)


def test_shorter_names_of_options_are_those_of_peft():
    model = with_adapter(llama(), "lora:rank=4,alpha=32,dropout=0.1,targets=q,v_proj")
    (config,) = model.peft_config.values()
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 32, 0.1)
    assert config.target_modules == {"q_proj", "v_proj"}
    assert config.task_type == "CAUSAL_LM"


def test_quantization_leaves_nothing_of_a_device_behind() -> None:
    """Else the next prediction in the process would find a tensor of this one."""
    bitsandbytes = library("nf4-dq")
    kept = bitsandbytes.functional.name2qmap
    with FakeTensorMode(allow_non_fake_inputs=True):
        bitsandbytes.functional.quantize_4bit(torch.empty(64, 64), compress_statistics=True)
    assert kept
    assert not any(isinstance(code, FakeTensor) for code in kept.values())


@pytest.mark.parametrize(
    ("library", "knobs", "said"),
    [
        (
            "peft",
            {"adapter": "lora"},
            "adapter lora is a method of peft, which is not installed .*pip install peft",
        ),
        ("bitsandbytes", {"adapter": "lora", "base": "nf4"}, "base nf4 is a quantization of bitsandbytes"),
    ],
)
def test_a_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, library: str, knobs: dict[str, str], said: str
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibraryError, match=said):
        import_libraries(Knobs(**knobs))


def test_reentrant_checkpoints_give_an_adapter_its_gradients_though_embeddings_are_frozen():
    torch.manual_seed(0)
    plain = llama()
    again = copy.deepcopy(plain)
    checkpoint_blocks(again, "blocks-reentrant")
    tokens = torch.arange(8).reshape(1, 8)
    gradients = []
    for model in (plain, again):
        torch.manual_seed(1)
        adapted = with_adapter(model, "lora:r=4")
        adapted(input_ids=tokens, labels=tokens).loss.backward()
        gradients.append({name: p.grad for name, p in adapted.named_parameters() if p.requires_grad})
    first, second = gradients
    assert any(each.abs().sum() > 0 for each in first.values())
    torch.testing.assert_close(first, second)


# Bytes that torchao keeps for each row of a weight beside its elements: a scale in float32, and a zero point.
ROW_BYTES = {"int8-torchao": 4 + 1, "fp8-torchao": 4}
LINEAR_ROWS = NUM_LAYERS * (5 * HIDDEN + 2 * INNER)
LINEAR_ELEMENTS = NUM_LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)


def held_bytes(model: torch.nn.Module) -> int:
    """What weights of linear layers hold, by the tensors that torchao's own are made of."""
    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    parts = [part for layer in layers for part in (layer.weight, *vars(layer.weight).values())]
    storages = [each.untyped_storage() for each in parts if type(each) is torch.Tensor]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


@pytest.mark.filterwarnings("ignore:TorchaoLoraLinear was instantiated")
@pytest.mark.parametrize("base", ["int8-torchao", "fp8-torchao", "nf4-torchao"])
def test_weights_that_torchao_quantizes_are_as_large_as_its_own(config: Path, base: str):
    pytest.importorskip("torchao")
    knobs = Knobs(base=base, precision="bf16")
    real = with_base(llama(), knobs)
    torchao_weights.quantize_on(real, torch.device("cpu"))
    held = held_bytes(real)
    if base in ROW_BYTES:
        assert held == LINEAR_ELEMENTS + ROW_BYTES[base] * LINEAR_ROWS
    kept = traced(config, base="bf16", precision="bf16", adapter="lora:r=4")
    trace = traced(config, base=base, precision="bf16", adapter="lora:r=4")
    saved = live_bytes(kept, Category.PARAMETER) - live_bytes(trace, Category.PARAMETER)
    assert saved == 2 * LINEAR_ELEMENTS - held
    assert most_moved_at_once(trace) == 1  # before it is quantized


def most_moved_at_once(trace: Trace) -> int:
    """How many weights of linear layers are there at once as they were made."""
    shapes = {(HIDDEN, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)}
    alive: set[int] = set()
    most = 0
    made = next(mark.position for mark in trace.marks if mark.name == "step 1 input")
    for event in trace.events[:made]:
        alive = alive - {~event} if event < 0 else alive | {event}
        moved = [trace.allocations[index] for index in alive]
        most = max(most, sum(a.operator == "aten.empty_strided" and a.shape in shapes for a in moved))
    return most


@pytest.mark.filterwarnings("ignore:TorchaoLoraLinear was instantiated")
def test_an_adapter_is_trained_beside_torchaos_weights():
    pytest.importorskip("torchao")
    knobs = Knobs(base="int8-torchao", adapter="lora:r=4")
    model = adapted_model(with_base(llama(), knobs), knobs)
    tokens = torch.arange(8).reshape(1, 8)
    model(input_ids=tokens, labels=tokens).loss.backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained
    assert all("lora" in name for name in trained)


_REFUSED = """
import json, sys
from autofit_workers.apply import adapter
from autofit_workers.workload.libraries.importing import imported

transformers = imported("transformers", "a test")
told = {name: value for name, value in json.loads(sys.argv[1]).items() if name != "model_type"}
model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**told))
adapted = adapter.with_adapter(model, "vera:r=4")
assert any("vera_lambda" in name for name, each in adapted.named_parameters() if each.requires_grad)
(note,) = adapter.notes()
print(note)
adapter.begin_program()
assert not adapter.notes()
"""


@pytest.mark.process
def test_a_torchao_that_peft_refuses_is_left_out_where_the_model_has_nothing_of_it(tmp_path: Path):
    (tmp_path / "torchao").mkdir()
    (tmp_path / "torchao" / "__init__.py").touch()
    about = tmp_path / "torchao-0.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: torchao\nVersion: 0.1\n")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _REFUSED, json.dumps(CONFIG)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))},
    )
    assert done.returncode == 0, done.stderr
    assert "cannot use torchao 0.1, of which this model has nothing" in done.stdout


def test_an_extension_that_peft_compiles_is_followed_by_a_stand_in(config: Path):
    """BOFT's blocks on a diagonal: a square matrix for each adapted layer and factor, kept for backward."""
    trace = traced(config, adapter="boft:boft_block_size=4,boft_n_butterfly_factor=2,targets=q,v")
    squares = [
        a for a in trace.allocations if a.operator == "aten.new_zeros" and a.shape == (2, HIDDEN, HIDDEN)
    ]
    assert len(squares) == 3 * 2 * NUM_LAYERS  # in each of three steps
    assert any(note.startswith("peft compiles fbd_cuda") for note in trace.notes)
    assert not any("fbd_cuda" in note for note in traced(config, adapter="lora:r=4").notes)
