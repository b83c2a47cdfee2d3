"""What training stacks do in their scripts: launchers, threads, generation, evaluation, checkpoints."""

from __future__ import annotations

import os
import sys
from collections import Counter

import pytest

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import UNPROTECTED, Trace
from autofit_workers.spec.workloads.references import UnknownWorkloadError
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run
from autofit_workers.workload.libraries.importing import without_missing_operators

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script

_HEAD = """
import os, torch
from torch import nn
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 256).cuda()).square().mean().backward()
    optimizer.step()
"""
_STEPS = "for _ in range(3): step()"


def predicted(script: Script, **how: object) -> TrialOutcome:
    return run(TrialSpec(workload=script.reference(), batch_size=4, probe=Probe.PREDICT, **how))


@pytest.fixture
def written(tmp_path):
    """Predicts a script of these lines after the common head."""

    def predict(*lines: str, setup: Setup = ALONE) -> Trace:
        path = tmp_path / "train.py"
        path.write_text(_HEAD + "\n".join(lines) + "\n")
        outcome = predicted(Script(path=path), setup=setup)
        assert outcome.verdict is Verdict.TRACED, outcome.error
        return Trace.from_json(outcome.trace_json)

    return predict


def shapes_of(trace: Trace) -> list[tuple[int, ...]]:
    return [allocation.shape for allocation in trace.allocations]


# ── phases ──────────────────────────────────────────────────────────────────────────────────────


def phase_names(trace: Trace) -> list[str]:
    return [mark.name.removeprefix("step ") for mark in trace.marks]


def test_evaluation_and_checkpoint_are_phases_between_the_steps(written):
    trace = written(
        "step()",
        "model.eval()",
        "with torch.no_grad(): model(torch.randn(512, 256).cuda())",
        "model.train()",
        "torch.save({k: v.double() for k, v in model.state_dict().items()}, 'model.pt')",
        _STEPS,
    )
    names = phase_names(trace)
    after_first = names.index("1 optimizer")
    assert names[after_first : after_first + 5] == [
        "1 optimizer", "2 input", "2 evaluation", "2 checkpoint", "2 forward",
    ]  # fmt: skip
    start, stop = (trace.marks[names.index(name)].position for name in ("2 checkpoint", "2 forward"))
    made = {trace.allocations[event].num_bytes for event in trace.events[start:stop] if event >= 0}
    assert 256 * 256 * 8 in made  # the copies that are saved, made before anything is


def test_a_pass_of_a_frozen_model_belongs_to_what_it_is_run_for(written):
    trace = written(
        "frozen = nn.Linear(256, 256).cuda().requires_grad_(False).eval()",
        "step()",
        "with torch.no_grad(): frozen(torch.randn(4, 256).cuda())",
        _STEPS,
    )
    assert not any(name.endswith("evaluation") for name in phase_names(trace))


def test_generation_is_a_phase(written):
    trace = written(
        "def generate():",
        "    with torch.no_grad(): return model(torch.randn(4, 256).cuda())",
        "for _ in range(3): generate(); step()",
    )
    assert {"1 generation", "2 generation", "3 generation"} <= {*phase_names(trace)}


def test_without_an_optimizer_no_pass_is_an_evaluation(tmp_path):
    path = tmp_path / "infer.py"
    path.write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8).cuda().eval()\n"
        "with torch.no_grad(): model(torch.randn(4, 8).cuda())\n"
    )
    outcome = predicted(Script(path=path))
    assert "1 forward" in phase_names(Trace.from_json(outcome.trace_json))


@pytest.mark.parametrize("batch_size", [4, 6])
def test_a_loader_of_another_size_keeps_it_where_the_scripts_own_size_is_asked_for(tmp_path, batch_size):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "model = torch.nn.Linear(8, 8).cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "training, evaluation = (DataLoader(torch.ones(96, 8), batch_size=size) for size in (4, 32))\n"
        "for batch in training:\n"
        "    model.train()(batch.cuda()).sum().backward()\n"
        "    optimizer.step()\n"
        "    with torch.no_grad(): model.eval()(next(iter(evaluation)).cuda())\n"
    )
    spec = TrialSpec(workload=Script(path=path).reference(), batch_size=batch_size, probe=Probe.PREDICT)
    trace = Trace.from_json(run(spec).trace_json)
    assert {(batch_size, 8), (32, 8)} <= {*shapes_of(trace)}


# ── generation ──────────────────────────────────────────────────────────────────────────────────

_CACHE = """
class Cache:
    def __init__(self): self.keys, self.num_seen = torch.zeros(4, 1, 64, device="cuda"), 1
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
    def forward(self, token, cache):
        for layer in self.layers: token = layer(token)
        cache.keys, cache.num_seen = torch.cat([cache.keys, token], 1), cache.num_seen + 1
        return {"logits": token @ cache.keys.mT, "cache": cache}
decoder = Decoder().cuda()
def generate(num):
    cache, token = Cache(), torch.randn(4, 1, 64).cuda()
    unfinished = torch.ones(4, dtype=torch.long, device="cuda")
    done = False
    with torch.no_grad():
        while not done:
            out = decoder(token, cache)
            assert out["cache"] is cache and out["logits"].shape == (4, 1, cache.num_seen)
            is_last = torch.full((4,), cache.num_seen >= num, device="cuda", dtype=torch.bool)
            ends = (out["logits"][:, 0, 0] > 5) | is_last
            unfinished = unfinished & ~ends
            done = unfinished.max() == 0
    return cache
"""


def test_a_long_generation_fills_its_cache_and_runs_few_of_its_passes_whole(written):
    trace = written(_CACHE, "assert generate(200).num_seen == 200", _STEPS)
    caches = {shape for shape in shapes_of(trace) if len(shape) == 3 and shape[0] == 4 and shape[2] == 64}
    assert {(4, length, 64) for length in range(2, 201)} <= caches
    num_layers = sum(allocation.operator == "aten.addmm" for allocation in trace.allocations)
    assert num_layers < 8 * 200 / 4


def test_the_longer_a_text_the_fewer_of_its_passes_run_whole_and_the_next_begins_again(written):
    trace = written(_CACHE, "generate(600)", "generate(40)", _STEPS)
    num_layers = sum(each.operator == "aten.addmm" for each in trace.allocations)
    # 1, 2, 3, 19, 35 and so on, of the second 1, 2, 3, 19, 38; every sixteenth would be 40 of the first.
    assert num_layers // 8 == 22 + 5


def test_a_second_text_runs_fewer_of_its_passes_whole_and_the_last_one_as_the_first_did(written):
    once = written(_CACHE, "generate(600)", _STEPS)
    twice = written(_CACHE, "generate(600)", "generate(600)", _STEPS)
    num_first, num_both = (
        sum(each.operator == "aten.addmm" for each in trace.allocations) // 8 for trace in (once, twice)
    )
    assert num_both - num_first <= num_first / 2
    logits = Counter(each.shape for each in twice.allocations if each.operator == "aten.bmm")
    assert logits[max(logits)] == 2, logits


def test_a_cache_that_stops_growing_is_followed_whole(written):
    windowed = _CACHE.replace(
        "torch.cat([cache.keys, token], 1)", "torch.cat([cache.keys, token], 1)[:, -5:]"
    )
    windowed = windowed.replace("== (4, 1, cache.num_seen)", "[:2] == (4, 1)")
    trace = written(windowed, "cache = generate(60)", "assert cache.num_seen == 60", _STEPS)
    longest = max(shape[1] for shape in shapes_of(trace) if len(shape) == 3 and shape[2] == 64)
    assert longest < 40


# ── threads, launchers, what is asked of a GPU ──────────────────────────────────────────────────


def test_weights_that_threads_load_are_on_the_gpu(written):
    trace = written(
        "from concurrent.futures import ThreadPoolExecutor",
        "with ThreadPoolExecutor(4) as pool:",
        "    kept = [pool.submit(torch.ones(100 + n).to, 'cuda') for n in range(20)]",
        "assert all(each.result().is_cuda for each in kept)",
        _STEPS,
    )
    loaded = [shape for shape in shapes_of(trace) if len(shape) == 1 and 100 <= shape[0] < 120]
    assert loaded == [(100 + n,) for n in range(20)]


@pytest.mark.parametrize("how", ["subprocess.run(command)", "os.execvp(command[0], command)"])
@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (["torchrun", "--nproc-per-node", "1"], "starts on one GPU is one process"),
        (["accelerate", "launch", "--mixed_precision", "bf16"], "starts is a process for each GPU of the"),
        (["deepspeed", "--no_local_rank"], "starts is a process for each GPU of the"),
    ],
)
def test_what_a_launcher_starts_as_one_process_is_followed(tmp_path, launcher, said, how):
    if launcher[0] == "accelerate":
        pytest.importorskip("accelerate")
    train, start = tmp_path / "train.py", tmp_path / "start.py"
    train.write_text(_HEAD + "import sys\nassert sys.argv[1:] == ['--lr', '1']\n" + _STEPS)
    command = [*launcher, str(train), "--lr", "1"]
    start.write_text(f"import os, subprocess\ncommand = {command}\n{how}\nraise SystemExit('it went on')\n")
    outcome = predicted(Script(path=start))
    assert outcome.verdict is Verdict.TRACED, outcome.error
    notes = Trace.from_json(outcome.trace_json).notes
    assert any(note.startswith(f"what {launcher[0]} {said}") for note in notes)


def test_a_launcher_that_is_called_as_a_module_is_followed(tmp_path):
    train = tmp_path / "train.py"
    train.write_text(_HEAD + _STEPS)
    script = Script(path="-m torch.distributed.run", arguments=("--nproc-per-node", "1", str(train)))
    outcome = predicted(script)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    notes = Trace.from_json(outcome.trace_json).notes
    assert any("what torch.distributed.run starts on one GPU is one process" in note for note in notes)


def test_a_shell_command_with_a_lone_quote_is_no_launcher(written):
    written("import subprocess", 'subprocess.run("true  # it\'s fine", shell=True, check=True)', _STEPS)


def test_a_module_is_a_script(tmp_path, monkeypatch):
    package = tmp_path / "stack"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").write_text("raise_if_imported_by_autofit = 1\n")
    (package / "cli" / "__init__.py").write_text("")
    (package / "cli" / "steps.py").write_text(_HEAD)
    (package / "cli" / "__main__.py").write_text(
        "from .steps import step\nassert __name__ == '__main__'\n" + _STEPS
    )
    monkeypatch.chdir(tmp_path)
    script = Script(path="-m stack.cli")
    assert script.name == "stack.cli"
    assert script.reference().target == str(package / "cli" / "__main__.py")
    assert "stack" not in sys.modules
    assert predicted(script).verdict is Verdict.TRACED


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(UnknownWorkloadError, match=r"there is no module os\.nothing"):
        Script(path="-m os.nothing.train").reference()


def test_a_program_beside_python_is_a_script(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path) if name == "scripts" else "")
    (tmp_path / "tune").write_text("#!/usr/bin/python\n")
    assert Script(path="tune").reference().target == str(tmp_path / "tune")
    with pytest.raises(UnknownWorkloadError, match="there is no script"):
        Script(path="tunes").reference()


def test_tied_weights_have_one_address_and_others_their_own(written):
    written(
        "tied, other = model.weight.view(-1), torch.empty(256, 256, device='cuda')",
        "address = lambda tensor: tensor.untyped_storage().data_ptr()",
        "assert address(tied) == address(model.weight) == model.weight.data_ptr() != 0",
        "assert address(other) != address(tied)",
        "assert tied[1:].data_ptr() == tied.data_ptr() + 4",
        "assert torch.ones(3).data_ptr() % 8 == 0",
        _STEPS,
    )


def test_a_stack_that_asks_for_nccl_finds_it(written):
    written("assert torch.distributed.is_nccl_available() and torch.cuda.nccl.version() >= (2, 10)", _STEPS)


def test_what_an_unknown_mask_selects_on_the_host_is_assumed(written):
    trace = written(
        "for _ in range(3):",
        "    step()",
        "    mask = (model(torch.randn(4, 256).cuda()) > 0).cpu()",
        "    torch.ones(4, 256)[mask].cuda()",
    )
    (assumption,) = trace.assumptions
    assert (assumption.size, assumption.largest) == (512, 1024)
    assert (512,) in shapes_of(trace)


def test_what_an_unknown_mask_selects_of_a_later_dimension_is_assumed(written):
    trace = written(
        "for _ in range(3):",
        "    step()",
        "    mask = (model(torch.randn(4, 256).cuda())[0] > 0).cpu()",
        "    torch.ones(7, 256)[:, mask].cuda()",
    )
    (assumption,) = trace.assumptions
    assert (assumption.size, assumption.largest) == (128, 256)


def test_files_of_processes_that_a_script_starts_go_with_it(written, tmp_path):
    (tmp_path / "mine").mkdir()
    trace = written(
        "import pathlib, subprocess, sys",
        "here = pathlib.Path(__file__).parent",
        "(here / 'prepared').mkdir()",
        "code = 'import sys; [open(name, chr(119)).write(chr(120)) for name in sys.argv[1:]]'",
        "names = [str(here / folder / 'part.arrow') for folder in ('prepared', 'mine')]",
        "subprocess.run([sys.executable, '-c', code, *names], check=True)",
        "assert (here / 'prepared' / 'part.arrow').exists()",
        _STEPS,
        setup=Setup(allows_subprocesses=True),
    )
    assert not (tmp_path / "prepared").exists()
    takes_effect = any(note.startswith(UNPROTECTED) for note in trace.notes)
    assert bool(list((tmp_path / "mine").iterdir())) == takes_effect


def test_torchaudio_of_another_build_goes_on_without_its_library(tmp_path, monkeypatch):
    folder = tmp_path / "torchaudio" / "_extension"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "utils.py").write_text("def _load_lib(name):\n    raise OSError('libc10_cuda.so')\n")
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchaudio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    with without_missing_operators():
        from torchaudio._extension import utils
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchaudio"]:
        monkeypatch.delitem(sys.modules, name)
    assert utils._load_lib("_torchaudio") is False


# ── weights in classes of a library ───────────────────────────────────────────────────────────────────

_QUANTIZED = """
import bitsandbytes
for place in ("cpu", "cuda"):
    layer = bitsandbytes.nn.Linear4bit(1024, 1024, bias=False, compute_dtype=torch.float16)
    weight = torch.randn(1024, 1024, dtype=torch.float16, device=place)
    layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, module=layer).to("cuda")
    for layer in (layer, layer.to("cuda")):
        assert isinstance(layer.weight, bitsandbytes.nn.Params4bit)
        assert (layer.weight.shape, layer.weight.dtype) == ((1024 * 1024 // 2, 1), torch.uint8)
        assert layer.weight.quant_state is not None
        layer(torch.randn(4, 1024, dtype=torch.float16, device="cuda"))
"""


def test_weights_that_their_class_quantizes_are_quantized_wherever_they_were_before(written):
    trace = written(_QUANTIZED, _STEPS)
    quantized = [each for each in trace.allocations if each.shape == (1024 * 1024 // 2, 1)]
    assert len(quantized) == 2
