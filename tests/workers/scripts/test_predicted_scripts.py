"""Training scripts that know nothing of autofit, predicted as they are."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import os
import textwrap
from pathlib import Path

import psutil
import pytest
import torch

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import UNPROTECTED, Category, Trace
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run
from tests.workers.predicted import peaks_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script

EXAMPLES = Path(__file__).parent / "examples"
BATCH = 128

_HEAD = """
import os, torch
from torch import nn
BATCH = int(os.environ["BATCH"])
model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of_step():
    optimizer.zero_grad()
    loss = model(torch.randn(BATCH, 8).cuda()).square().mean()
    loss.backward()
    return loss
"""


def predicted(ref: WorkloadRef, batch_size: int = BATCH, setup: Setup = ALONE) -> TrialOutcome:
    return run(TrialSpec(workload=ref, batch_size=batch_size, probe=Probe.PREDICT, setup=setup))


def example(name: str) -> TrialOutcome:
    return predicted(Script(path=EXAMPLES / f"{name}.py", batch_argument="--batch-size").reference())


@pytest.fixture(scope="module")
def plain() -> TrialOutcome:
    return example("plain")


@pytest.fixture
def written(tmp_path):
    """Predicts a script of these lines after the common head."""

    def predict(*lines: str, batch_size: int = BATCH, setup: Setup = ALONE) -> TrialOutcome:
        path = tmp_path / "train.py"
        path.write_text(_HEAD + "\n".join(lines) + "\n")
        return predicted(Script(path=path, batch_variable="BATCH").reference(), batch_size, setup)

    return predict


def as_it_is(folder: Path, *lines: str) -> TrialOutcome:
    """Predicts a script of these lines, at the batch that it makes."""
    path = folder / "train.py"
    path.write_text("\n".join(lines) + "\n")
    ref = Script(path=path).reference()
    return predicted(dataclasses.replace(ref, script=dataclasses.replace(ref.script, keeps_batch=True)))


def as_workload(name: str) -> TrialOutcome:
    ref = WorkloadRef(kind="file", target=f"{EXAMPLES}/as_workloads.py:{name}", search_path=(str(EXAMPLES),))
    return predicted(ref)


def test_a_plain_loop_needs_to_the_byte_what_the_same_workload_needs(plain):
    assert plain.verdict is Verdict.TRACED, plain.error
    assert peaks_of(plain) == peaks_of(as_workload("plain"))


@pytest.mark.parametrize("name", ["trainer", "lightning_fit", "accelerated"])
def test_a_framework_needs_what_the_same_workload_needs(name):
    """Up to what the framework itself keeps on the GPU: losses and metrics, a few blocks of 512 bytes."""
    script, workload = example(name), as_workload(name)
    assert script.verdict is Verdict.TRACED, script.error
    assert workload.verdict is Verdict.TRACED, workload.error
    of_script, of_workload = peaks_of(script), peaks_of(workload)
    assert of_script.reserved_bytes == of_workload.reserved_bytes
    assert abs(of_script.allocated_bytes - of_workload.allocated_bytes) <= 16 * 512


def test_the_phases_of_three_steps_are_marked_and_what_they_hold_is_told(plain):
    trace = Trace.from_json(plain.trace_json)
    names = [mark.name for mark in trace.marks]
    phases = [f"step {number} {phase}" for number in (1, 2, 3) for phase in ("input", "forward", "backward")]
    assert [name for name in names if name in phases] == phases
    assert names[0] == "model" and "step 3 optimizer" in names
    sizes = dict.fromkeys(Category, 0)
    for allocation in trace.allocations[: trace.marks[1].position]:
        sizes[allocation.category] += allocation.num_bytes
    num_parameters = 16 * 27 + 16 + 2 * 16 + 1024 * 100 + 100 + 100 * 10 + 10
    running_statistics = 2 * 16 * 4 + 8
    assert sizes[Category.PARAMETER] == 4 * num_parameters + running_statistics
    states = [a for a in trace.allocations if a.category is Category.OPTIMIZER_STATE]
    assert sum(state.num_bytes for state in states) >= 8 * num_parameters
    assert {a.module for a in trace.allocations} >= {"0", "1", "5", "7"}


def test_its_own_file_is_among_the_files_that_the_prediction_is_of(plain):
    assert str(EXAMPLES / "plain.py") in plain.sources


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        (["x = 3"], "user", "train.py ended without a step"),
        (["import sys", "sys.exit('no data')"], "user", "an error after 0 optimizer steps: no data"),
        (
            [
                "import argparse",
                "p = argparse.ArgumentParser()",
                "p.add_argument('--data', required=True)",
                "p.parse_args()",
            ],
            "user",
            "arguments are required: --data. Give the script its arguments with --script-arg",
        ),
        (["model.to('cuda:1')"], "unsupported", "asks for GPU 1"),
        (
            ["import subprocess", "subprocess.run(['mpirun', '-n', '2', 'python', 'x.py'])"],
            "unsupported",
            "with mpirun: give it to --script",
        ),
        (
            ["torch.multiprocessing.Process(target=loss_of_step).start()"],
            "unsupported",
            "train by themselves: start",
        ),
        (["torch.cuda.CUDAGraph()"], "unsupported", "turn them off in the script, or measure it"),
    ],
)
def test_what_cannot_be_followed_is_said_in_one_sentence(written, lines, kind, words):
    outcome = written(*lines)
    assert outcome.verdict in (Verdict.FAILED, Verdict.INVALID)
    assert outcome.error.kind == kind
    assert words in outcome.error.message


STEP = "loss = loss_of_step(); optimizer.step()"


@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        ([f"for _ in range(5): {STEP}; best = loss.item() if loss.item() < 9 else 9"], ["taken as True"]),
        ([f"for _ in range(5): {STEP}; exit(1) if loss > 10 else None"], ["taken as False"]),
        ([f"for _ in range(2): {STEP}", "raise KeyError('path')"], ["steps; the script then raised"]),
        ([f"for _ in range(2): {STEP}", "model.to('cuda:1')"], ["from 2 optimizer steps; the script then: "]),
        (["torch.backends.cudnn.benchmark = True", f"for _ in range(3): {STEP}"], ["cudnn-benchmark conv"]),
    ],
)  # fmt: skip
def test_what_was_seen_is_an_answer_and_what_was_decided_is_told(written, lines, notes):
    outcome = written(*lines)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    told = " ".join(Trace.from_json(outcome.trace_json).notes)
    assert all(note in told for note in notes)


@pytest.mark.parametrize(
    "lines",
    [
        ["model = torch.compile(model, fullgraph=True)", f"for _ in range(3): {STEP}"],
        [
            "class Doubled(nn.Module):",
            "    def forward(self, x): return 2 * linear(x) + 1",
            "linear, model = model, Doubled()",
            "model.compile()",
            f"for _ in range(3): {STEP}",
        ],
        ["@torch.compile", "def twice(x): return 2 * x + 1", f"for _ in range(3): {STEP}; twice(loss)"],
    ],
)
def test_what_a_script_compiles_is_followed_as_compiled(written, lines):
    outcome = written(*lines)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert any(call.work.operator.startswith("inductor.") for call in trace.work)
    assert trace.seen.num_eager_graphs == 0


def test_a_function_that_is_compiled_and_never_called_changes_nothing(written):
    outcome = written(
        "@torch.compile(dynamic=True)", "def twice(x): return 2 * x", f"for _ in range(3): {STEP}"
    )
    trace = Trace.from_json(outcome.trace_json)
    assert not any("compile" in note for note in trace.notes)
    assert not any(call.work.operator.startswith("inductor.") for call in trace.work)


@pytest.mark.parametrize(
    ("line", "note", "mode"),
    [
        ("loss = model(x).sum(); model.zero_grad(); loss.backward(); "
         "[p.data.sub_(p.grad) for p in model.parameters()]", "backward pass", "train"),
        ("torch.no_grad()(model)(x)", "forward pass", "infer"),
    ],
)  # fmt: skip
def test_a_script_without_an_optimizer_has_steps_of_another_kind(tmp_path, line, note, mode):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nmodel = torch.nn.Linear(8, 4).cuda()\n"
        f"for _ in range(9):\n    x = torch.randn(4, 8).cuda()\n    {line}\n"
    )
    outcome = predicted(Script(path=path).reference(), 4)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.mode == mode
    assert f"a step is a {note}" in " ".join(trace.notes)


def test_a_batch_that_does_not_reach_the_model_is_invalid(written):
    outcome = written("BATCH = 5", "loss_of_step()", "optimizer.step()")
    assert outcome.verdict is Verdict.INVALID
    assert "got no input with 128 samples, only (5, 8)" in outcome.error.message


def test_a_loader_may_make_several_rows_of_a_sample(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nmodel = torch.nn.Linear(8, 4).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "pairs = lambda rows: torch.stack([*rows, *rows])\n"
        "for x in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=2, collate_fn=pairs):\n"
        "    model(x.cuda()).mean().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    outcome = predicted(Script(path=path).reference(), 4)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert 8 * 8 * 4 in {a.num_bytes for a in Trace.from_json(outcome.trace_json).allocations}


def test_a_script_that_lets_nothing_end_it_is_left_behind(written):
    outcome = written(
        "steps = 'while True:\\n try:\\n  loss_of_step()\\n  optimizer.step()\\n except:\\n  pass'",
        "exec(steps)",  # whose loop nobody sees
    )
    assert outcome.verdict is Verdict.TRACED
    assert outcome.num_steps_done == 3
    assert [m.name for m in Trace.from_json(outcome.trace_json).marks][-1] == "step 3 optimizer"


def test_values_that_a_script_put_on_the_gpu_itself_may_decide(written):
    outcome = written(
        "length = torch.tensor(4, device='cuda')",
        "if length == 0 or torch.isnan(loss_of_step()).any(): raise SystemExit('refused')",
        "scaler = torch.amp.GradScaler('cuda')",
        "for _ in range(int(length)):",
        "    scaler.scale(loss_of_step())",
        "    scaler.step(optimizer)",
        "    before = scaler.get_scale()",
        "    scaler.update()",
        "    assert before <= scaler.get_scale()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_streams_statistics_and_workers_of_a_loader_are_answered(written):
    outcome = written(
        "torch.cuda.set_device(0); torch.cuda.manual_seed_all(1); torch.cuda.reset_peak_memory_stats()",
        "data = torch.utils.data.TensorDataset(torch.randn(BATCH * 4, 8))",
        "loader = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=1, pin_memory=True)",
        "with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):",
        "    for batch, in loader:",
        "        model(batch.cuda(non_blocking=True)).sum().backward()",
        "        optimizer.step()",
        "        torch.cuda.synchronize()",
        "        print(torch.cuda.memory_allocated(), torch.cuda.mem_get_info())",
        "        print(torch.cuda.get_device_name(), torch.cuda.memory_stats()['num_ooms'])",
        "        assert 'A100' in torch.cuda.get_device_properties(0).name",
        "torch.save(model.state_dict(), 'never.pt')",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert not os.path.exists("never.pt")  # noqa: PTH110


def test_marks_for_profilers_and_the_allocators_history_are_answered(written):
    outcome = written(
        "torch.cuda.memory._record_memory_history(max_entries=1000)",
        "torch.cuda.cudart().cudaProfilerStart()",
        "for _ in range(3):",
        "    with torch.cuda.nvtx.range('step'), torch.autograd.profiler.emit_nvtx():",
        f"        {STEP}",
        "    torch.cuda.nvtx.mark('stepped')",
        "    assert torch.cuda.memory._snapshot()['segments'] == torch.cuda.memory_snapshot() == []",
        "    torch.cuda.memory._dump_snapshot('never.pickle')",
        "torch.cuda.profiler.stop()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert not os.path.exists("never.pickle")  # noqa: PTH110


def test_a_process_that_left_its_group_ends_with_the_script(written, tmp_path):
    mark = str(tmp_path / "left")
    outcome = written(
        "import subprocess",
        f"loop = 'trap \"\" TERM; touch {mark}; while :; do sleep 1; done'",
        "subprocess.Popen(['setsid', 'sh', '-c', loop])",
        f"while not os.path.exists({mark!r}): pass",
        f"for _ in range(3): {STEP}",
        setup=Setup(allows_subprocesses=True),
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert [each.pid for each in psutil.process_iter(["cmdline"]) if mark in str(each.info["cmdline"])] == []
    notes = Trace.from_json(outcome.trace_json).notes
    takes_effect = any(note.startswith(UNPROTECTED) for note in notes)
    assert os.path.exists(mark) == takes_effect  # noqa: PTH110


def test_what_a_script_saves_it_can_load_again_and_nothing_stays(written, tmp_path):
    path = str(tmp_path / "kept.pt")
    outcome = written(
        "import shutil",
        f"torch.save({{'model': model.state_dict(), 'epoch': torch.tensor([7])}}, {path!r})",
        f"assert os.path.isfile({path!r})",
        f"shutil.copyfile({path!r}, {path + '.best'!r})",
        f"found = torch.load({path + '.best'!r}, map_location='cpu', weights_only=False)",
        "assert found['epoch'].tolist() == [7]",
        "assert found['model']['weight'].shape == (4, 8) and not found['model']['weight'].is_cuda",
        "model.load_state_dict(found['model'])",
        f"for _ in range(3): {STEP}",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train.py"]


def test_trackers_are_silent_and_need_not_be_installed(written):
    outcome = written(
        "import wandb",
        "from clearml import Task",
        "from clearml.backend_api.session.defs import MissingConfigError",
        "try: task = Task.init(project_name='x'); task.connect({})",
        "except MissingConfigError: raise",
        "try: import comet_ml; raise SystemExit('nobody has installed it')",
        "except ImportError: comet_ml = None",
        "from torch.utils.tensorboard import SummaryWriter",
        "class Writer(SummaryWriter): pass",
        "run = wandb.init(project='x', config={'width': 3})",
        "assert wandb.config.width == run.config['width'] == 3",
        "writer = Writer('runs')",
        "assert not callable(writer)",
        "for step in range(3):",
        "    loss = loss_of_step(); optimizer.step()",
        "    writer.add_scalar('loss', loss, step); wandb.log({'loss': loss}); writer.add_graph(model)",
        "wandb.finish(); writer.close()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert not Path("runs").exists()


def test_distributed_training_of_one_process_has_the_buckets_of_its_wrapper(written):
    outcome = written(
        "import torch.distributed as dist",
        "dist.init_process_group('nccl', init_method='env://')",
        "torch.cuda.set_device(dist.get_rank())",
        "model = nn.parallel.DistributedDataParallel(model, device_ids=[0])",
        "for _ in range(3):",
        "    loss = loss_of_step(); dist.all_reduce(loss); dist.barrier(); optimizer.step()",
        "assert dist.get_world_size() == 1",
        "dist.destroy_process_group()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    modules = {a.module for a in Trace.from_json(outcome.trace_json).allocations}
    assert "DistributedDataParallel" in modules


def test_the_batch_of_a_loader_a_constant_and_the_script_itself(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nBATCH = 16\nmodel = torch.nn.Linear(8, 4).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "data = torch.utils.data.TensorDataset(torch.randn(40, 8))\n"
        "held_back = torch.utils.data.TensorDataset(torch.randn(10, 8))\n"
        "with torch.no_grad():\n"
        "    for x, in torch.utils.data.DataLoader(held_back, batch_size=BATCH): model(x.cuda())\n"
        "for epoch in range(3):\n"
        "    for x, in torch.utils.data.DataLoader(data, batch_size=BATCH, drop_last=False):\n"
        "        optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()\n"
    )
    part = tmp_path / "part.py"
    part.write_text(
        path.read_text().replace(
            "batch_size=BATCH, drop_last=False",
            "batch_size=BATCH, sampler=torch.utils.data.SubsetRandomSampler(range(30))",
        )
    )

    def trace(batch_size: int, *, own: bool = False, **options: str) -> Trace:
        reference = Script(path=path, **options).reference()
        call = dataclasses.replace(reference.script, keeps_batch=own)
        outcome = predicted(dataclasses.replace(reference, script=call), batch_size)
        assert outcome.verdict is Verdict.TRACED, outcome.error
        return Trace.from_json(outcome.trace_json)

    def rows(trace: Trace) -> int:
        return max(
            a.shape[0] for a in trace.allocations if a.shape[1:] == (8,) and a.operator == "aten._to_copy"
        )

    by_loader, by_name, own, whole = trace(5), trace(5, batch_name="BATCH"), trace(1, own=True), trace(99)
    assert [each.batch_size for each in (by_loader, by_name, own, whole)] == [5, 5, 16, 40]
    assert [rows(each) for each in (by_loader, by_name, own, whole)] == [5, 5, 16, 40]
    assert own.versions["num_samples"] == "40"
    assert "the whole data set of 40 is one batch" in whole.notes
    path = part
    assert trace(99).batch_size == 30


def test_a_device_can_be_named_in_every_way(written):
    outcome = written(
        "import copy",
        "model.to(0); model.cuda(torch.device(0)); torch.zeros(2, device=0)",
        "torch.zeros(2).to(torch.cuda.current_device(), non_blocking=True)",
        "assert isinstance(torch.cuda.FloatTensor(2), torch.cuda.FloatTensor)",
        "assert torch.zeros(2).type('torch.cuda.LongTensor').dtype == torch.int64",
        "assert copy.deepcopy(model).weight.is_cuda",
        "drawn = torch.Generator(device='cuda').manual_seed(3)",
        "assert drawn.device == torch.device('cuda', 0) and torch.Generator().device.type == 'cpu'",
        "assert torch.randn(2, generator=drawn, device='cuda').is_cuda",
        "assert all(isinstance(each, torch.Generator) for each in (drawn, torch.default_generator))",
        "assert nn.DataParallel(model)(torch.randn(2, 8)).is_cuda",
        f"for _ in range(3): {STEP}",
        "torch.set_default_device('cuda')",
        "assert torch.zeros(2).is_cuda",
        "torch.set_default_tensor_type('torch.cuda.HalfTensor')",
        "assert torch.zeros(2).dtype == torch.float16",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_the_default_tensor_type_may_be_the_gpus(tmp_path):
    """Factories, `torch.Tensor` and orders are the GPU's then; types that name the CPU are not."""
    outcome = as_it_is(
        tmp_path,
        "import numpy as np, torch",
        "from torch import nn",
        "torch.set_default_tensor_type('torch.cuda.FloatTensor')",
        "net = nn.Linear(16, 8)",
        "optimizer = torch.optim.Adam(net.parameters())",
        "made = [torch.Tensor([1e10]), torch.Tensor(2, 3), torch.Tensor(np.zeros((4, 2))), torch.Tensor(),",
        "        torch.as_tensor(np.ones(3)), torch.cuda.LongTensor([1]), torch.Tensor(2, 3).new(4)]",
        "assert all(each.is_cuda for each in made)",
        "assert [tuple(each.shape) for each in made] == [(1,), (2, 3), (4, 2), (0,), (3,), (1,), (4,)]",
        "on_cpu = [torch.FloatTensor([1.0]), torch.LongTensor(2), torch.from_numpy(np.ones(3))]",
        "assert not any(each.is_cuda for each in on_cpu)",
        "data = torch.utils.data.TensorDataset(torch.rand(96, 16))",
        "own = torch.Generator(device='cuda')",
        "for (rows,) in torch.utils.data.DataLoader(data, 32, shuffle=True, generator=own):",
        "    out = net(rows) + torch.Tensor([1e10]).expand(32, 1)",
        "    optimizer.zero_grad()",
        "    out.mean().backward()",
        "    optimizer.step()",
        "torch.set_default_tensor_type(torch.FloatTensor)",
        "assert not torch.Tensor([1.0]).is_cuda and not torch.rand(2).is_cuda",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert Trace.from_json(outcome.trace_json).assumptions == ()


@pytest.mark.parametrize(
    ("default", "generator", "words"),
    [
        ("torch.set_default_tensor_type('torch.cuda.FloatTensor')", "None", "Expected a 'cuda' device type"),
        ("torch.set_default_device('cuda')", "torch.Generator()", "Expected a 'cuda' device type"),
        ("pass", "torch.Generator('cuda')", "Expected a 'cpu' device type"),
    ],
)
def test_an_order_is_drawn_by_a_generator_of_its_own_device(tmp_path, default, generator, words):
    outcome = as_it_is(
        tmp_path,
        "import torch",
        default,
        "data = torch.utils.data.TensorDataset(torch.rand(96, 16))",
        f"next(iter(torch.utils.data.DataLoader(data, 32, shuffle=True, generator={generator})))",
    )
    assert outcome.verdict is Verdict.FAILED
    assert f"{words} for generator" in outcome.error.message


def test_what_is_only_logged_compared_or_scored_decides_nothing(written):
    outcome = written(
        "import math, numpy as np",
        "torch.cuda.manual_seed_all(0); seen, correct, total = 0, 0, 0.0",
        "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)",
        "for step in range(6):",
        "    x, y = torch.randn(BATCH, 8).cuda(), torch.randint(0, 4, (BATCH,)).cuda()",
        "    out = model(x); loss = nn.functional.cross_entropy(out, y)",
        "    optimizer.zero_grad(); loss.backward()",
        "    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0); print(norm.item())",
        "    optimizer.step(); plateau.step(loss)",
        "    hits = out.argmax(1) == y",
        "    print(f'{loss.item():.4f}', float(loss), loss, '%d' % int(hits.sum()))",
        "    print(hits.float().mean().cpu().numpy())",
        "    seen += BATCH; correct += hits.sum().item(); total += loss.item() * BATCH",
        "    print(correct / seen, math.exp(min(20, total / seen)), np.mean([loss.item(), loss.item()]))",
        "    print(out.argmax(1).cpu().numpy()[:3], sum(out.argmax(1).tolist()))",
        "    print(loss.detach().cpu().numpy())",
        "    if torch.isnan(loss).any() or not torch.isfinite(out).all(): raise SystemExit(1)",
        "    model.eval()",
        "    with torch.no_grad():",
        "        guessed = model(x).argmax(1).cpu()",
        "        assert torch.bincount(4 * y.cpu() + guessed, minlength=16).shape == (16,)",
        "    model.train()",
        "assert seen == 3 * BATCH",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert Trace.from_json(outcome.trace_json).assumptions == ()


def test_values_that_came_from_the_cpu_decide_sizes_and_others_are_assumed(written):
    outcome = written(
        "rows = torch.arange(BATCH) % 4 == 0",
        "recurrent = nn.LSTM(8, 6).cuda()",
        "lengths = torch.arange(BATCH, 0, -1).clamp(max=5)",
        "for _ in range(3):",
        "    optimizer.zero_grad(); x = torch.randn(BATCH, 8).cuda()",
        "    picked = model(x)[rows.cuda()]; assert len(picked) == BATCH // 4",
        "    labels = torch.arange(BATCH).cuda(); assert labels.max().item() == BATCH - 1",
        "    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, BATCH, 8).cuda(), lengths)",
        "    steps = recurrent(packed)[0].data; assert len(steps) == int(lengths.sum())",
        "    loss = picked.sum() + steps.sum() + x[torch.randperm(BATCH)].sum()",
        "    loss = loss + x.masked_select(x > 0).sum(); loss.backward(); optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    (assumed,) = Trace.from_json(outcome.trace_json).assumptions
    assert (assumed.size, assumed.largest) == (BATCH * 4, BATCH * 8)
    assert "train.py:" in assumed.site


def test_closures_sparse_gradients_penalties_and_copied_models(written):
    outcome = written(
        "encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2).to('cuda')",
        "bag = nn.EmbeddingBag(100, 8, sparse=True, mode='sum').cuda()",
        "sparse = torch.optim.SparseAdam(bag.parameters())",
        "quasi = torch.optim.LBFGS(encoder.parameters(), max_iter=2)",
        "for _ in range(4):",
        "    optimizer.zero_grad(); sparse.zero_grad(); x = torch.randn(BATCH, 8).cuda().requires_grad_()",
        "    grad = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]",
        "    rows = bag(torch.randint(0, 100, (BATCH, 3)).cuda())",
        "    loss = ((grad.norm(2, 1) - 1) ** 2).mean() + model(rows).sum()",
        "    loss.backward(); optimizer.step(); sparse.step()",
        "    def closure():",
        "        quasi.zero_grad(); loss = encoder(torch.randn(BATCH, 5, 8).cuda()).sum()",
        "        loss.backward(); return loss",
        "    quasi.step(closure)",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_boxes_that_suppression_keeps_are_assumed_and_pooled(tmp_path):
    path = tmp_path / "detect.py"
    path.write_text(
        textwrap.dedent("""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision.ops import nms, roi_align

            NUM_BOXES, CHANNELS = 1000, 16
            images = [(torch.randn(3, 32 + i % 3, 32), {"boxes": torch.rand(i % 5, 4)}) for i in range(40)]
            loader = DataLoader(images, batch_size=4, collate_fn=lambda batch: tuple(zip(*batch)))
            backbone = nn.Conv2d(3, CHANNELS, 3, padding=1).cuda()
            boxes_of = nn.Linear(CHANNELS, NUM_BOXES * 4).cuda()
            scores_of = nn.Linear(CHANNELS, NUM_BOXES).cuda()
            head = nn.Linear(CHANNELS * 49, 5).cuda()

            class Detector(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.parts = nn.ModuleList([backbone, boxes_of, scores_of, head])

                def forward(self, images, targets):
                    losses = []
                    for image, target in zip(images, targets):
                        features = backbone(image[None])
                        mean = features.mean((2, 3))[0]
                        boxes = boxes_of(mean).view(NUM_BOXES, 4)
                        kept = nms(boxes.detach(), scores_of(mean).detach(), 0.7)
                        losses.append(head(roi_align(features, [boxes[kept].detach()], 7).flatten(1)).mean())
                    return sum(losses)

            model = Detector()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for images, targets in loader:
                optimizer.zero_grad()
                model([image.cuda() for image in images], targets).backward()
                optimizer.step()
        """)
    )
    outcome = predicted(Script(path=path).reference(), 8)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.batch_size == 8
    (assumed,) = trace.assumptions
    assert (assumed.size, assumed.largest) == (500, 1000)
    assert assumed.what == "boxes that suppression keeps"
    sizes = collections.Counter(each.num_bytes for each in trace.allocations)
    assert sizes[500 * 16 * 49 * 4] >= 8  # the pooled regions of each image


def test_a_script_finds_a_terminal_at_which_nobody_types(written):
    outcome = written(
        "rows, columns = os.popen('stty size', 'r').read().split()",
        "assert (rows, columns) == ('24', '80')",
        "try:",
        "    input('your key? ')",
        "except EOFError:",
        "    pass",
        "for _ in range(3):",
        "    loss_of_step()",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_modules_that_prepare_samples_are_no_models(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent("""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, Dataset

            class Noisy(Dataset):
                change = nn.Dropout(0.1)
                def __len__(self):
                    return 100
                def __getitem__(self, _number):
                    return self.change(torch.randn(3, 8))

            model = nn.Linear(8, 4).cuda()
            model(torch.zeros(2, 8).cuda())  # an example, as some libraries show it to a model
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in DataLoader(Noisy(), batch_size=16):
                model(batch.cuda()).mean().backward()
                optimizer.step()
        """)
    )
    ref = Script(path=path).reference()
    assert ref.script is not None
    own = dataclasses.replace(ref, script=dataclasses.replace(ref.script, keeps_batch=True))
    outcome = predicted(own, 1)
    assert Trace.from_json(outcome.trace_json).batch_size == 16


@pytest.mark.parametrize(("sizes", "num_loaded"), [((8,), 16), ((8, 9), 128)])
def test_a_large_batch_repeats_its_first_samples_where_all_are_of_one_shape(tmp_path, sizes, num_loaded):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, Dataset

            class Counted(Dataset):
                loaded = set()
                def __len__(self):
                    return 1000
                def __getitem__(self, number):
                    self.loaded.add(number)
                    return torch.randn({sizes}[number % {len(sizes)}])

            def padded(samples):
                print(len(samples), "samples,", len(Counted.loaded), "loaded")
                return nn.utils.rnn.pad_sequence(samples, batch_first=True)[:, :8]

            model = nn.Linear(8, 4).cuda()
            for batch in DataLoader(Counted(), batch_size=128, collate_fn=padded):
                assert len(Counted.loaded) == {num_loaded}
                model(batch.cuda()).mean().backward()
                raise SystemExit("that is all")
        """)
    )
    outcome = predicted(Script(path=path).reference(), 128)
    assert outcome.error is not None
    assert "that is all" in outcome.error.message


@pytest.mark.parametrize(("kept", "num_passes"), [("", 2), ("losses.append(loss)", 8)])
def test_of_accumulated_batches_the_first_show_what_each_takes(tmp_path, kept, num_passes):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
            import os, torch
            from torch import nn
            BATCH, losses = int(os.environ["BATCH"]), []
            model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(4):
                optimizer.zero_grad()
                for _ in range(8):
                    loss = model(torch.randn(BATCH, 8).cuda()).square().mean()
                    loss /= 8
                    loss.backward()
                    {kept}
                optimizer.step()
        """)
    )
    outcome = predicted(Script(path=path, batch_variable="BATCH").reference())
    trace = Trace.from_json(outcome.trace_json)
    start, end = (
        next(mark.position for mark in trace.marks if mark.name == f"step {number} input")
        for number in (2, 3)
    )
    made = [trace.allocations[event] for event in trace.events[start:end] if event >= 0]
    assert sum(each.operator == "aten.relu" for each in made) == num_passes


def test_tensors_may_be_made_in_pinned_memory(written):
    outcome = written(
        "tokens = torch.empty(1024, dtype=torch.uint8, pin_memory=True)",
        "assert tokens.numpy().nbytes == 1024",
        "window = torch.tensor([1, 2], pin_memory=True).cuda(non_blocking=True)",
        "for _ in range(10):",
        "    loss_of_step()",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_a_compiled_model_in_distributed_data_parallel_is_compiled(tmp_path):
    outcome = as_it_is(
        tmp_path,
        "import os, torch",
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel",
        "os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='29500')",
        "dist.init_process_group('nccl')",
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)).cuda()",
        "model = DistributedDataParallel(torch.compile(model), device_ids=[0])",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "for _ in range(10):",
        "    model(torch.randn(64, 8, device='cuda')).square().mean().backward()",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.seen.num_eager_graphs == 0, trace.notes


def test_an_operator_of_the_scripts_own_is_run(written):
    """Its temporaries count, of which the function that describes its outputs says nothing."""
    lines = (
        "@torch.library.custom_op('own::scaled', mutates_args=())",
        "def scaled(x: torch.Tensor) -> torch.Tensor:",
        "    return x.repeat({}, 1)[: x.size(0)].mul(2)",
        "@scaled.register_fake",
        "def _(x):",
        "    return torch.empty_like(x)",
        "x = torch.randn(1024, 1024, device='cuda')",
        "for _ in range(10):",
        "    loss_of_step()",
        "    torch.ops.own.scaled(x)",
        "    optimizer.step()",
    )
    peaks = []
    for num_copies in (1, 9):
        outcome = written(*(line.format(num_copies) for line in lines))
        assert outcome.verdict is Verdict.TRACED, outcome.error
        peaks.append(peaks_of(outcome).allocated_bytes)
    assert peaks[1] - peaks[0] == pytest.approx(8 * 4 * 1024**2, rel=0.01)


def test_an_operator_of_the_scripts_own_that_cannot_be_run_is_followed_by_its_outputs(written):
    outcome = written(
        "@torch.library.custom_op('own::compiled', mutates_args=())",
        "def compiled(x: torch.Tensor) -> torch.Tensor:",
        "    raise RuntimeError('the extension was not built')",
        "@compiled.register_fake",
        "def _(x):",
        "    return torch.empty_like(x)",
        "x = torch.randn(1024, 1024, device='cuda')",
        "for _ in range(10):",
        "    loss_of_step()",
        "    torch.ops.own.compiled(x)",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert any(
        "own::compiled is not one of PyTorch's" in n for n in Trace.from_json(outcome.trace_json).notes
    )


def test_a_compiled_product_of_8_bit_numbers_is_followed(written):
    outcome = written(
        "@torch.compile",
        "def product(a, b):",
        "    one = torch.ones((), device='cuda')",
        "    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)",
        "    return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)",
        "a = torch.randn(1024, 1024, device='cuda')",
        "for _ in range(10):",
        "    loss_of_step()",
        "    product(a, a)",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert Trace.from_json(outcome.trace_json).seen.num_eager_graphs == 0


@pytest.mark.parametrize("loop", ["while True:", "for _ in range(1000):"])
def test_a_generator_that_is_asked_by_next_goes_on(written, loop):
    """A warm-up loop is ended, and so is the training loop; then the script evaluates."""
    outcome = written(
        "def batches():",
        f"    {loop}",
        "        yield torch.randn(BATCH, 8).cuda()",
        "loader = batches()",
        "def train(num_steps):",
        "    for _ in range(num_steps):",
        "        optimizer.zero_grad()",
        "        model(next(loader)).square().mean().backward()",
        "        optimizer.step()",
        "train(20)",
        "train(1000)",
        "model.eval()",
        "with torch.no_grad():",
        "    model(next(loader))",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.seen.is_to_end, trace.notes
    assert any(mark.name.endswith("evaluation") for mark in trace.marks)


_KERNEL = (
    "import triton",
    "import triton.language as tl",
    "@triton.jit",
    "def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):",
    "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
    "    x = tl.load(x_ptr + offsets, mask=offsets < n)",
    "    tl.store(out_ptr + offsets, x * 2, mask=offsets < n)",
    "@torch.compile(fullgraph=True)",
    "def doubled(x, num_times):",
    "    for _ in range(num_times):",
    "        out = torch.empty_like(x)",
    "        double_kernel[(1,)](x, out, x.numel(), BLOCK=64)",
    "        x = out.sin()",
    "    return x",
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_compiled_code_launches_kernels_of_triton(written):
    """A launch allocates nothing, and what it writes is used again."""
    peaks = []
    for num_times in (2, 8):
        outcome = written(
            *_KERNEL,
            "x = torch.randn(1024, 1024, device='cuda')",
            "for _ in range(10):",
            "    loss_of_step()",
            f"    doubled(x, {num_times})",
            "    optimizer.step()",
        )
        assert outcome.verdict is Verdict.TRACED, outcome.error
        trace = Trace.from_json(outcome.trace_json)
        assert trace.seen.num_eager_graphs == 0, trace.notes
        assert any("double_kernel" in note for note in trace.notes)
        peaks.append(peaks_of(outcome).allocated_bytes)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    "imports",
    [
        "from flash_attn_interface import flash_attn_varlen_func",
        "from kernels import get_kernel\n"
        "flash_attn_varlen_func = get_kernel('kernels-community/flash-attn3').flash_attn_varlen_func",
    ],
    ids=["installed", "of the hub"],
)
@pytest.mark.skipif(importlib.util.find_spec("flash_attn_interface") is not None, reason="it is installed")
def test_compiled_code_calls_flash_attention_3(written, imports):
    outcome = written(
        imports,
        "ends = torch.arange(0, 1025, 256, dtype=torch.int32, device='cuda')",
        "@torch.compile(fullgraph=True)",
        "def attend(x, ends):",
        "    q, k, v = x.chunk(3, dim=1)",
        "    ends = 1 * ends",
        "    scale = 1 / torch.cuda.get_device_properties('cuda').multi_processor_count",
        "    y = flash_attn_varlen_func(q, k, v, ends, ends, 256, 256, causal=True, softmax_scale=scale)",
        "    return y.float().mean()",
        "x = torch.randn(1024, 6, 128, device='cuda', dtype=torch.bfloat16, requires_grad=True)",
        "for _ in range(10):",
        "    loss_of_step()",
        "    attend(x, ends).backward()",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert Trace.from_json(outcome.trace_json).seen.num_eager_graphs == 0


def test_compiled_code_takes_a_number_of_the_cpu(written):
    outcome = written(
        "share = torch.tensor(0.5)",
        "@torch.compile(fullgraph=True)",
        "def shrunk(x, share):",
        "    return x * share",
        "for _ in range(10):",
        "    loss_of_step()",
        "    shrunk(torch.ones(64, device='cuda'), share)",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.seen.num_eager_graphs == 0, trace.notes
    assert not any("then raised" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("variable", "conf", "followed", "words"),
    [
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "expandable_segments", "sets its allocator: exp"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", "max_split:64", "sets its allocator: max"),
        ("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.8", None, "which is not followed: garbage"),
    ],
)
def test_settings_of_the_allocator_that_a_script_makes_are_noted(tmp_path, variable, conf, followed, words):
    outcome = as_it_is(
        tmp_path,
        "import os",
        f"os.environ[{variable!r}] = {conf!r}",
        "import torch",
        "weight = torch.nn.Parameter(torch.zeros(64, 64, device='cuda'))",
        f"os.environ[{variable!r}] = 'max_split_size_mb:32'  # too late",
        "optimizer = torch.optim.SGD([weight], lr=0.1)",
        "for _ in range(3):",
        "    weight.sum().backward()",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.versions.get("own_allocator") == followed
    assert any(words in note for note in trace.notes)


@pytest.mark.skipif(not hasattr(torch.cuda, "_compile_kernel"), reason="PyTorch compiles kernels since 2.9")
def test_a_kernel_that_a_script_compiles_does_nothing(written):
    outcome = written(
        "double = torch.cuda._compile_kernel('extern \"C\" __global__ void double(float* x) {}', 'double')",
        "double.set_shared_memory_config(1024)",
        "for _ in range(3):",
        "    loss_of_step()",
        "    double(grid=(1, 1, 1), block=(32, 1, 1), args=[torch.ones(32, device='cuda')])",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert any("compiles itself (double)" in note for note in Trace.from_json(outcome.trace_json).notes)


def test_compiled_code_makes_a_number_within_a_function_of_autograd(written):
    outcome = written(
        "class Scaled(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, x):",
        "        return x * x.new_tensor(0.5, dtype=torch.float32)",
        "    @staticmethod",
        "    def backward(ctx, grad):",
        "        return grad * grad.new_tensor(0.5, dtype=torch.float32)",
        "scaled = torch.compile(Scaled.apply, fullgraph=True)",
        "x = torch.ones(64, device='cuda', requires_grad=True)",
        "for _ in range(10):",
        "    loss_of_step()",
        "    scaled(x).sum().backward()",
        "    optimizer.step()",
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.seen.num_eager_graphs == 0, trace.notes
