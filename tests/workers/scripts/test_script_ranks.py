"""Training scripts of several ranks, of which one is predicted, as a launcher starts it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import psutil
import pytest

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import UNPROTECTED, Category, Trace
from autofit_workers.spec.workloads.launcher_commands import launcher_command
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run
from tests.workers.predicted import peaks_of

pytestmark = pytest.mark.process  # each script has a process, with the imports of what it trains by

MODELS = Path(__file__).parents[1] / "tracing" / "sharded_workloads.py"
BATCH = 16
SEGMENT_BYTES = 2 * 2**20

_HEAD = f"""
import os, sys, torch
import torch.distributed as dist
from torch import nn
sys.path.insert(0, {str(MODELS.parent)!r})
import sharded_workloads
workload = sharded_workloads.gpt
def train(model, optimizer=None, device="cuda"):
    optimizer = optimizer or workload.optimizer(model.parameters())
    for _ in range(3):
        tokens = workload.make_batch({BATCH}, device)
        optimizer.zero_grad()
        workload.loss(model, tokens).backward()
        optimizer.step()
"""
_TORCHRUN = """
local_rank = int(os.environ["LOCAL_RANK"])
torch.accelerator.set_device_index(local_rank)
device = torch.device(f"{torch.accelerator.current_accelerator()}:{local_rank}")
dist.init_process_group(dist.get_default_backend_for_device(device))
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Predicts one rank of a script of these lines after the common head."""
    monkeypatch.chdir(tmp_path)

    def predict(
        *lines: str,
        rank: int = 0,
        arguments: tuple[str, ...] = (),
        torch: str | None = None,
        **launched: object,
    ) -> TrialOutcome:
        path = tmp_path / "train.py"
        path.write_text("\n".join((_HEAD, *lines, "")))
        script = Script(path=path, arguments=arguments, **launched)
        return predicted(script.reference(), Setup(rank=rank, torch=torch))

    return predict


def predicted(ref: WorkloadRef, setup: Setup) -> TrialOutcome:
    return run(TrialSpec(workload=ref, batch_size=BATCH, probe=Probe.PREDICT, setup=setup))


def of_workload(name: str, parallel: str, rank: int = 0) -> TrialOutcome:
    ref = WorkloadRef(kind="file", target=f"{MODELS}:{name}", search_path=(str(MODELS.parent),))
    return predicted(ref, Setup(parallel=Parallel.parse(parallel), rank=rank))


def require(library: str) -> None:
    """Skips a test whose script imports what is not installed; nothing is imported here."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")


def require_the_same(script: TrialOutcome, workload: TrialOutcome) -> None:
    assert script.verdict is Verdict.TRACED, script.error
    assert workload.verdict is Verdict.TRACED, workload.error
    of_script, of_workload = peaks_of(script), peaks_of(workload)
    assert of_script.allocated_bytes == pytest.approx(of_workload.allocated_bytes, rel=0.01)
    # A segment for small tensors more or less, as parameters come to the GPU in another order.
    assert abs(of_script.reserved_bytes - of_workload.reserved_bytes) <= SEGMENT_BYTES


def test_fully_shard_takes_what_it_takes_of_the_same_model(written):
    outcome = written(
        _TORCHRUN,
        "from torch.distributed.fsdp import FSDPModule, fully_shard",
        "with torch.device('meta'): model = workload.build_model()",
        "for block in model.h: fully_shard(block)",
        "fully_shard(model)",
        "assert isinstance(model, FSDPModule)",
        "assert all(each.is_meta for each in (*model.parameters(), *model.buffers()))",
        "model.to_empty(device=device)",
        "for each in model.modules():",
        "    if hasattr(each, 'reset_parameters'): each.reset_parameters()",
        "train(model, device=device)",
        rank=5,
        num_processes=4,
        num_nodes=2,
    )
    require_the_same(outcome, of_workload("gpt", "fsdp:8", rank=5))
    trace = Trace.from_json(outcome.trace_json)
    assert (trace.num_ranks, trace.rank, trace.parallel, trace.groups) == (8, 5, "script:8", (8,))
    assert len({each.stream for each in trace.allocations}) > 1
    started = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
    assert not any("train.py" in command for command in started)


def test_tensor_parallelism_and_fully_shard_have_a_group_each(written):
    outcome = written(
        "workload = sharded_workloads.perceptrons",
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.fsdp import fully_shard",
        "from torch.distributed.tensor.parallel import parallelize_module",
        "world = int(os.environ['WORLD_SIZE'])",
        "mesh = init_device_mesh('cuda', (world // 2, 2), mesh_dim_names=('dp', 'tp'))",
        "model = workload.build_model().cuda()",
        "parallelize_module(model, mesh['tp'], model.tp_plan)",
        "for block in model.layers: fully_shard(block, mesh=mesh['dp'])",
        "train(fully_shard(model, mesh=mesh['dp']))",
        num_processes=8,
    )
    require_the_same(outcome, of_workload("perceptrons", "fsdp:4,tp:2"))
    assert Trace.from_json(outcome.trace_json).groups == (4, 2)


def test_a_spawned_function_is_entered_as_the_rank(written):
    outcome = written(
        "from torch.utils.data import DataLoader, TensorDataset, DistributedSampler",
        "def main(rank, world, lesson):",
        "    os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='12355')",
        "    torch.cuda.set_device(rank)",
        "    dist.init_process_group('nccl', rank=rank, world_size=world)",
        "    assert (rank, world, lesson, torch.cuda.device_count()) == (2, 4, 'one', 4)",
        "    model = nn.parallel.DistributedDataParallel(workload.build_model().to(rank), device_ids=[rank])",
        "    sampler = DistributedSampler(TensorDataset(torch.zeros(64)))",
        "    assert len(sampler) == 16 and sampler.rank == rank",
        "    train(model, device=f'cuda:{rank}')",
        "torch.multiprocessing.spawn(main, args=(4, 'one'), nprocs=4)",
        rank=2,
    )
    require_the_same(outcome, of_workload("gpt", "ddp:4"))
    trace = Trace.from_json(outcome.trace_json)
    assert (trace.num_ranks, trace.rank, trace.groups) == (4, 2, (4,))
    buckets = [each for each in trace.allocations if each.module == "DistributedDataParallel"]
    assert {each.category for each in buckets} == {Category.GRADIENT}


def test_norms_are_synced_unused_parameters_found_and_optimizers_sharded(written):
    outcome = written(
        _TORCHRUN,
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook",
        "from torch.distributed.optim import ZeroRedundancyOptimizer",
        "model = sharded_workloads.resnet.build_model()",
        "model.unused = nn.Linear(4, 4)",
        "model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(local_rank)",
        "assert any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())",
        "model = nn.parallel.DistributedDataParallel(model, [local_rank], find_unused_parameters=True)",
        "model.register_comm_hook(None, fp16_compress_hook)",
        "workload = sharded_workloads.resnet",
        "train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1))",
        rank=3,
        num_processes=4,
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    notes = Trace.from_json(outcome.trace_json).notes
    assert [note for note in notes if not note.startswith(UNPROTECTED)] == []


def test_what_ranks_exchange_is_this_ones_own(written):
    outcome = written(
        _TORCHRUN,
        "world, rank = dist.get_world_size(), dist.get_rank()",
        "dist.barrier(device_ids=[local_rank])",
        "seen = [None] * world; dist.all_gather_object(seen, {'rank': rank})",
        "assert seen == [{'rank': rank}] * world",
        "dist.gather_object(obj=rank, object_gather_list=seen, dst=rank); assert seen == [rank] * world",
        "parts = [torch.zeros(2) for _ in range(world)]; dist.all_gather(parts, torch.ones(2))",
        "assert torch.stack(parts).tolist() == [[1, 1]] * world",
        "whole = torch.zeros(2 * world); dist.all_gather_into_tensor(whole, torch.ones(2))",
        "assert whole.tolist() == [1] * 2 * world",
        "loss = torch.ones((), device=device); dist.all_reduce(loss, op=dist.ReduceOp.AVG)",
        "dist.TCPStore('localhost', 29501, world, False)",
        "half = dist.new_group(list(range(world // 2))); dist.all_reduce(loss, group=half)",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision",
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy",
        "policy = ModuleWrapPolicy({type(workload.build_model().h[0])})",
        "model = FSDP(workload.build_model(), auto_wrap_policy=policy, device_id=local_rank,",
        "             sync_module_states=True, mixed_precision=MixedPrecision(torch.bfloat16))",
        "optimizer = workload.optimizer(model.parameters())",
        "from torch.distributed.checkpoint import state_dict as states, save, load",
        "loss = workload.loss(model, workload.make_batch(16, device)); loss.backward()",
        "model.clip_grad_norm_(1.0); optimizer.step(); optimizer.zero_grad()",
        "options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)",
        "whole = states.get_model_state_dict(model, options=options)",
        "assert whole['wpe.weight'].shape == workload.build_model().wpe.weight.shape",
        "parts, moments = states.get_state_dict(model, optimizer)",
        "save({'model': parts, 'optimizer': moments}, checkpoint_id='kept')",
        "load({'model': parts, 'optimizer': moments}, checkpoint_id='kept')",
        "train(model, optimizer)",
        num_processes=4,
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.groups == (4, 2)
    assert not [note for note in trace.notes if "raised" in note], trace.notes
    assert not Path("kept").exists()


def test_deepspeeds_engine_shards_as_it_shards_the_same_model(written):
    require("deepspeed")
    outcome = written(
        "import deepspeed",
        "model = workload.build_model()",
        f"config = {{'train_micro_batch_size_per_gpu': {BATCH}, 'zero_allow_untested_optimizer': True,",
        "          'zero_optimization': {'stage': 2}}",
        "optimizer = workload.optimizer(model.parameters())",
        "engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)",
        "for _ in range(3):",
        f"    engine.backward(workload.loss(engine, workload.make_batch({BATCH}, engine.device)))",
        "    engine.step()",
        launcher="deepspeed",
        num_processes=4,
    )
    require_the_same(outcome, of_workload("gpt", "zero2:4"))


@pytest.mark.parametrize("launcher", ["accelerate", "accelerate launch --config_file fsdp.yaml"])
def test_accelerate_tells_what_its_options_and_its_file_say(written, tmp_path, launcher):
    require("accelerate")
    (tmp_path / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 1\nnum_processes: 4\n"
        "mixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Block\n"
        "  fsdp_reshard_after_forward: true\n  fsdp_cpu_ram_efficient_loading: true\n"
    )
    by_file = "config_file" in launcher
    outcome = written(
        "from accelerate import Accelerator",
        "accelerator = Accelerator()",
        "model = workload.build_model()",
        "model._no_split_modules = ['Block']",
        "model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))",
        f"assert accelerator.mixed_precision == {'bf16' if by_file else 'no'!r}",
        "assert (accelerator.num_processes, accelerator.process_index) == (4, 3)",
        "train(model, optimizer)",
        rank=3,
        launcher=launcher,
        num_processes=None if by_file else 4,
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert (trace.num_ranks, trace.rank, trace.groups) == (4, 3, (4,))
    assert ("DistributedDataParallel" in {each.module for each in trace.allocations}) != by_file


def test_the_trainer_of_transformers_shards_by_its_own_options(written):
    require("accelerate")
    require("transformers")
    outcome = written(
        "from transformers import Trainer, TrainingArguments",
        "model = sharded_workloads.llama.build_model()",
        f"rows = [{{'input_ids': row, 'labels': row}} for row in workload.make_batch({4 * BATCH}, 'cpu')]",
        "sharded = {'fsdp_version': 2, 'transformer_layer_cls_to_wrap': ['LlamaDecoderLayer']}",
        f"given = TrainingArguments('out', per_device_train_batch_size={BATCH}, max_steps=4, report_to=[],",
        "    fsdp=True, fsdp_config={**sharded, 'auto_wrap_policy': 'TRANSFORMER_BASED_WRAP'})",
        "Trainer(model, given, train_dataset=rows).train()",
        num_processes=4,
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert (trace.num_ranks, trace.groups) == (4, (4,))
    whole = of_workload("llama", "ddp:2")
    assert peaks_of(outcome).allocated_bytes < peaks_of(whole).allocated_bytes


def test_lightning_shards_by_its_own_strategy_at_the_batch_that_is_asked_for(written):
    """Its loaders are made anew for the ranks, of the parameters that it reads in the first one."""
    require("pytorch_lightning")
    outcome = written(
        "import pytorch_lightning as pl",
        "from pytorch_lightning.strategies import FSDPStrategy",
        "class Module(pl.LightningModule):",
        "    def __init__(self): super().__init__(); self.model = workload.build_model()",
        "    def training_step(self, tokens, _): return workload.loss(self.model, tokens)",
        "    def configure_optimizers(self): return workload.optimizer(self.parameters())",
        "loader = torch.utils.data.DataLoader(workload.make_batch(256, 'cpu'), batch_size=4)",
        "block = type(workload.build_model().h[0])",
        "silent = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, max_steps=4)",
        "pl.Trainer(accelerator='gpu', devices=4, strategy=FSDPStrategy(auto_wrap_policy={block}),",
        "           **silent).fit(Module(), loader)",
        rank=1,
        num_processes=4,
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert (trace.batch_size, trace.num_ranks, trace.rank, trace.groups) == (BATCH, 4, 1, (4,))


_STEPS = "train(workload.build_model().cuda())"


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (["torchrun", "--nproc-per-node", "4", "--nnodes", "2"], ["assert os.environ['GROUP_RANK'] == '1'"]),
        (
            ["deepspeed", "--num_gpus", "4", "--num_nodes", "2"],
            ["assert sys.argv[1:] == ['--local_rank=1', '--lr', '1']"],
        ),
    ],
)
def test_a_launcher_that_a_script_calls_tells_the_rank_what_it_is(written, tmp_path, command, lines):
    (tmp_path / "part.py").write_text(
        _HEAD
        + "assert [os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')] == ['5', '1', '8']\n"
        + "\n".join((*lines, "assert sys.argv[-2:] == ['--lr', '1']", _STEPS))
    )
    outcome = written("import subprocess", f"subprocess.run({[*command, 'part.py', '--lr', '1']})", rank=5)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert Trace.from_json(outcome.trace_json).num_ranks == 8


@pytest.mark.parametrize(
    ("lines", "launched", "kind", "words"),
    [
        ([_STEPS], {"rank": 9, "num_processes": 8}, "inapplicable", "--rank 9: torchrun starts 8 ranks of"),
        ([_STEPS], {"rank": 1}, "inapplicable", "--rank 1: train.py starts no ranks: say how many"),
        (
            ["torch.multiprocessing.spawn(print, nprocs=2)"],
            {"rank": 2},
            "inapplicable",
            "--rank 2: mp.spawn starts 2 ranks of train.py, 0 to 1",
        ),
        (
            [_STEPS],
            {"launcher": "torchrun --nproc-per-node=gpu"},
            "inapplicable",
            "--nproc-per-node=gpu asks the machine how many processes there are, and a prediction has none: "
            "write the number",
        ),
        (
            [_TORCHRUN, "torch.zeros(2, device='cuda:3')"],
            {"rank": 1, "num_processes": 4},
            "unsupported",
            "asks for GPU 3, but rank 1 has GPU 1 alone",
        ),
    ],
)
def test_what_no_rank_can_be_is_said_in_one_sentence(written, lines, launched, kind, words):
    outcome = written(*lines, **launched)
    assert outcome.verdict is Verdict.FAILED
    assert (outcome.error.kind, outcome.error.message.count("\n")) == (kind, 0)
    assert words in outcome.error.message


def test_what_is_said_of_ranks_is_a_launchers_command():
    assert launcher_command(None) == ()
    assert launcher_command(None, 8) == ("torchrun", "--nproc-per-node=8", "--nnodes=1")
    of_module = launcher_command("accelerate launch --config_file 'my file.yaml'", module=True)
    assert of_module == ("accelerate", "launch", "--config_file", "my file.yaml", "-m")
    assert launcher_command("accelerate", 4, 2)[:4] == (
        "accelerate", "launch", "--num_processes=8", "--num_machines=2",
    )  # fmt: skip
    assert launcher_command("deepspeed --no_local_rank", 4) == (
        "deepspeed", "--no_local_rank", "--num_gpus=4", "--num_nodes=1",
    )  # fmt: skip
    with pytest.raises(ValueError, match="'srun' is none of torchrun, accelerate, deepspeed"):
        launcher_command("srun", 8)
    with pytest.raises(ValueError, match="No closing quotation"):
        launcher_command("torchrun --rdzv-id='1", 8)


def test_ddps_own_reducer_does_the_work_that_is_recorded_without_it(written):
    outcome = written(
        _TORCHRUN,
        "model = workload.build_model().to(device)",
        "train(nn.parallel.DistributedDataParallel(model, device_ids=[local_rank]))",
        num_processes=4,
    )
    found, expected = (
        Trace.from_json(each.trace_json).work for each in (outcome, of_workload("gpt", "ddp:4"))
    )
    assert [call.work for call in found if call.work.group] == [
        call.work for call in expected if call.work.group
    ]
    for operator in ("aten.copy_", "aten.mul.out", "aten.mm", "aten.addmm"):
        assert _calls(found, operator) == _calls(expected, operator), operator


def _calls(work, operator):
    return sorted(str(call.work.inputs) for call in work if call.work.operator == operator)


_COLLECTIVES = """
dist.init_process_group("nccl")
weight = nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(6):
    (torch.ones(8, 1024, device="cuda") @ weight).sum().backward()
    shard = torch.empty(1024 // dist.get_world_size(), 1024, device="cuda")
    work = dist.reduce_scatter_tensor(shard, weight.grad, async_op=True)
    {waits}
    optimizer.step()
    weight.grad = None
    del shard, work
    {reads}
torch.ones(8 * 2**20, device="cuda")
"""
_WEIGHT_BYTES, _SHARD_BYTES = 4 * 2**20, 2**20


@pytest.mark.parametrize(
    ("waits", "reads", "torch", "num_kept"),
    [
        ("work.wait()", "", None, 0),
        ("work.get_future().wait()", "", None, 2),
        ("work.get_future().wait()", "torch.cuda.synchronize()", None, 1),
        ("work.get_future().wait()", "", "2.7", 0),
    ],
    ids=["waits", "waits for the future", "reads each step", "before 2.8"],
)
def test_nccls_group_keeps_tensors_of_collectives_that_nobody_waits_for(
    written, waits, reads, torch, num_kept
):
    lines = _COLLECTIVES.format(waits=waits, reads=reads).splitlines()
    outcome = written(*lines, launcher="torchrun", num_processes=4, torch=torch)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    alive = sum(
        trace.allocations[event].num_bytes if event >= 0 else -trace.allocations[~event].num_bytes
        for event in trace.events
    )
    last = trace.allocations[trace.events[-1]].num_bytes if trace.events[-1] >= 0 else 0
    assert alive - last == pytest.approx(
        _WEIGHT_BYTES + num_kept * (_WEIGHT_BYTES + _SHARD_BYTES), abs=_SHARD_BYTES // 2
    )


def test_a_compiled_step_may_call_what_pytorch_deprecates(written):
    outcome = written(
        "dist.init_process_group('nccl')",
        "weight = nn.Parameter(torch.zeros(1024, 64, device='cuda'))",
        "optimizer = torch.optim.SGD([weight], lr=0.1)",
        "@torch.compile",
        "@torch.no_grad()",
        "def exchange(weights):",
        "    futures, shards = [], []",
        "    for each in weights:",
        "        shards.append(torch.empty_like(each[: 1024 // 4]))",
        "        work = dist.reduce_scatter_tensor(shards[-1], each.grad, async_op=True)",
        "        futures.append(work.get_future())",
        "    for each, got in zip(weights, shards):",
        "        futures[0].wait()",
        "        shard = each[: 1024 // 4]",
        "        shard.add_(got.mul(2.0), alpha=-1.0)",
        "        futures.append(dist.all_gather_into_tensor(each, shard, async_op=True).get_future())",
        "    torch.futures.collect_all(futures).wait()",
        "for _ in range(4):",
        "    weight.sum().backward()",
        "    exchange([weight])",
        "    optimizer.step()",
        launcher="torchrun",
        num_processes=4,
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    trace = Trace.from_json(outcome.trace_json)
    assert trace.seen.num_eager_graphs == 0, trace.notes
