"""The lines to paste do in a script what a trial did with its knobs."""

from __future__ import annotations

import ast
import copy
import importlib
import itertools
from types import SimpleNamespace

import pytest
import torch

import autofit
from autofit.answers.tune.script_lines import call_lines, script_lines
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.apply import setting
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.allocator import conf_variable
from autofit_workers.spec.knobs.memory_format import MEMORY_FORMATS
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.setup import Parallel
from autofit_workers.workload.optimizers import each_of, make_named


def lines(
    knobs: Knobs, *, device_kind: str = "cuda", training: bool = True, parallel: str = "ddp:1"
) -> list[str]:
    options = {"device_kind": device_kind, "training": training, "parallel": Parallel.parse(parallel)}
    return list(script_lines(knobs, batch_size=118, **options))


@pytest.mark.parametrize(("conv_algo", "device_kind"), [("cudnn", "cuda"), ("onednn", "cpu")])
def test_of_what_pytorch_does_by_itself_there_is_no_line(conv_algo, device_kind):
    (loader,) = lines(Knobs(conv_algo=conv_algo), device_kind=device_kind)
    assert loader.startswith("loader = ")


def flags():
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_flags_are_those_of_the_trial(precision):
    knobs = Knobs(precision=precision)
    with setting.applied(knobs, "cuda"):
        expected = flags()
    with setting.applied(Knobs(), "cuda"):
        exec("\n".join(line for line in lines(knobs) if line.startswith("torch.")), {"torch": torch})
        assert flags() == expected


@pytest.mark.parametrize(("precision", "memory_format"), [*itertools.product(PRECISIONS, MEMORY_FORMATS)])
def test_the_conversions_are_those_of_the_trial(precision, memory_format):
    knobs = Knobs(precision=precision, memory_format=memory_format)
    names = {"torch": torch, "model": torch.nn.Conv2d(3, 4, 3), "inputs": torch.ones(2, 3, 5, 5)}
    exec("\n".join(line for line in lines(knobs) if line.startswith(("model", "inputs"))), names)
    expected = setting.converted_model(torch.nn.Conv2d(3, 4, 3), knobs).weight
    inputs = setting.converted_batch(torch.ones(2, 3, 5, 5), knobs)
    assert (names["model"].weight.dtype, names["model"].weight.stride()) == (
        expected.dtype,
        expected.stride(),
    )
    assert (names["inputs"].dtype, names["inputs"].stride()) == (inputs.dtype, inputs.stride())


@pytest.mark.parametrize(
    ("optimizer", "implementation"),
    [(name, implementation) for name, named in NAMED.items() for implementation in named.implementations],
)
def test_the_optimizer_is_made_as_in_the_trial(optimizer, implementation):
    library = pytest.importorskip(NAMED[optimizer].library)
    model = torch.nn.Sequential(torch.nn.Embedding(3, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    names = {"torch": torch, "autofit": autofit, "model": model, library.__name__: library}
    importlib.import_module(NAMED[optimizer].path.rpartition(".")[0])
    knobs = Knobs(optimizer=optimizer, optimizer_impl=implementation)
    made = lines(knobs)
    exec(
        "\n".join(line for line in made if line.startswith(("optimizer", "hidden", "rest", "groups"))), names
    )
    found = names["optimizers"] if "optimizers" in names else [names["optimizer"]]
    expected = each_of(make_named(optimizer, model, implementation))
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        assert one.defaults == other.defaults
        of_one, of_other = (
            [{**group, "params": [*map(id, group["params"])]} for group in each.param_groups]
            for each in (one, other)
        )
        assert of_one == of_other


def test_of_two_optimizers_each_steps_and_the_model_drops_the_gradients():
    assert lines(Knobs(optimizer="muon"))[-4:] == [
        "model.zero_grad()",
        "loss.backward()",
        "for optimizer in optimizers:",
        "    optimizer.step()",
    ]
    assert lines(Knobs(optimizer="muon", precision="amp-fp16", grad_accumulation=4))[-5:] == [
        "if (number + 1) % 4 == 0:  # of the batches, counted from 0",
        "    for optimizer in optimizers:",
        "        scaler.step(optimizer)",
        "    scaler.update()",
        "    model.zero_grad()",
    ]


def test_an_optimizer_of_the_workload_keeps_its_arguments_beside_the_implementation():
    assert "optimizer = ...(model.parameters(), fused=True)" in lines(Knobs(optimizer_impl="fused"))


def test_float16_scales_the_loss_and_takes_the_step_through_the_scaler():
    made = lines(Knobs(precision="amp-fp16", set_to_none=False))
    assert made[-7:] == [
        'scaler = torch.amp.GradScaler("cuda")',
        "optimizer.zero_grad(set_to_none=False)",
        'with torch.autocast("cuda", dtype=torch.float16):',
        "    loss = ...  # forward pass and loss; backward outside",
        "scaler.scale(loss).backward()",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]


def test_gradients_are_clipped_between_backward_and_the_step_and_unscaled_before():
    assert lines(Knobs(clip_grad_norm=1.0))[-3:] == [
        "loss.backward()",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "optimizer.step()",
    ]
    assert lines(Knobs(clip_grad_norm=0.5, precision="amp-fp16", grad_accumulation=2))[-6:] == [
        "if (number + 1) % 2 == 0:  # of the batches, counted from 0",
        "    scaler.unscale_(optimizer)",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
        "    scaler.step(optimizer)",
        "    scaler.update()",
        "    optimizer.zero_grad()",
    ]


@pytest.mark.parametrize("optimizer", ["sgd-momentum", "muon", "galore-adamw"])
def test_in_backward_every_parameter_has_an_optimizer_that_a_hook_steps(optimizer):
    library = pytest.importorskip(NAMED[optimizer].library)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    made = lines(Knobs(optimizer=optimizer, optimizer_in_backward=True))
    names = {"torch": torch, "autofit": autofit, "model": model, library.__name__: library}
    exec("\n".join(made[1:-1]), names)
    twin = copy.deepcopy(model)
    model(torch.ones(2, 4)).sum().backward()
    assert made[-1].startswith("loss.backward()  #")
    assert all(parameter.grad is None for parameter in model.parameters())
    after = make_named(optimizer, twin)
    twin(torch.ones(2, 4)).sum().backward()
    for each in each_of(after):
        each.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_in_backward_the_workload_s_optimizer_is_made_of_each_parameter():
    made = lines(Knobs(optimizer_in_backward=True, precision="amp-bf16", optimizer_impl="fused"))
    assert "optimizers = {p: ...([p], fused=True) for p in model.parameters() if p.requires_grad}" in made
    assert made[-1].startswith("loss.backward()  #")
    assert not any("optimizer.step" in line for line in made)


def test_checkpoints_are_set_around_the_blocks_of_a_training_alone():
    knobs = Knobs(checkpointing="blocks")
    assert any(line.startswith("autofit.checkpoint_blocks(model)") for line in lines(knobs))
    assert not any("checkpoint" in line for line in lines(knobs, training=False))


def test_a_model_of_transformers_is_told_its_attention_once_it_is_made():
    told = 'model.set_attn_implementation("flash_attention_2")'
    assert told in lines(Knobs(attention="fa2"))
    settings = TuneSettings(model="train.py", script="train.py", batch_name="BATCH")
    best = SimpleNamespace(knobs=Knobs(attention="fa2"), batch_size=7)
    assert list(call_lines(settings, best)) == [f"# in it: {told}", "# in it: BATCH = 7", "python train.py"]


@pytest.mark.parametrize(
    ("loss", "told"),
    [("full", "{}"), ("chunked:8", "{'fused_linear_cross_entropy': False, 'cross_entropy': False}")],
)
def test_kernels_of_liger_bring_their_loss_where_no_other_is_asked_for(loss: str, told: str):
    assert f"apply_liger_kernel(model, {told})" in lines(Knobs(kernels="liger", loss=loss))


def test_a_model_is_compiled_in_its_mode():
    made = lines(Knobs(compile="mode=max-autotune"))
    assert any(line.startswith('model = torch.compile(model, mode="max-autotune")') for line in made)


def test_a_model_is_compiled_once_it_is_where_it_runs():
    made = lines(Knobs(compile=True, memory_format="channels_last"))
    moved, compiled = (
        next(i for i, line in enumerate(made) if line.startswith(start))
        for start in ("model = model.to(", "model = torch.compile(model)")
    )
    assert moved < compiled


def test_levers_of_the_allocator_and_of_accumulation_are_lines_too():
    made = lines(Knobs(allocator="expandable_segments", global_batch=472, checkpointing="every:2"))
    assert made[0].startswith('os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"')
    assert any(line.startswith('autofit.checkpoint_blocks(model, "every:2")') for line in made)
    loss = next(number for number, line in enumerate(made) if line.startswith("loss = loss / 4 "))
    assert made[loss + 1] == "loss.backward()"


def test_float16_divides_the_loss_before_it_is_scaled_and_steps_after_the_last_batch():
    made = lines(Knobs(precision="amp-fp16", global_batch=472, set_to_none=False))
    assert made[-7:] == [
        'with torch.autocast("cuda", dtype=torch.float16):',
        "    loss = ... / 4  # forward pass and loss; backward outside",
        "scaler.scale(loss).backward()",
        "if (number + 1) % 4 == 0:  # of the batches, counted from 0",
        "    scaler.step(optimizer)",
        "    scaler.update()",
        "    optimizer.zero_grad(set_to_none=False)",
    ]


def test_inference_needs_neither_optimizer_nor_scaler():
    knobs = Knobs(precision="amp-fp16", optimizer="adam", optimizer_impl="fused", set_to_none=False)
    assert lines(knobs, device_kind="cpu", training=False) == [
        "loader = torch.utils.data.DataLoader(dataset, batch_size=118)",
        'with torch.autocast("cpu", dtype=torch.float16):',
        "    output = ...",
    ]


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(
            precision=precision, set_to_none=set_to_none, grad_accumulation=num_batches, clip_grad_norm=norm
        )
        for precision, set_to_none, num_batches, norm in itertools.product(
            PRECISIONS, (True, False), (1, 4), (None, 1.0)
        )
    ],
    ids=str,
)
def test_the_lines_are_python(knobs):
    compile("\n".join(lines(knobs)), "lines", "exec")


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_shards_are_made_of_blocks_and_of_the_model_around_them(precision: str) -> None:
    text = "\n".join(lines(Knobs(optimizer="adam", precision=precision), parallel="hsdp:2x4"))
    ast.parse(text)
    assert 'init_device_mesh("cuda", (2, 4)' in text
    assert 'fully_shard(module, mesh=mesh["replicate", "fsdp"]' in text
    assert ("MixedPrecisionPolicy(param_dtype=torch.bfloat16" in text) == (precision == "amp-bf16")
    assert "torch.autocast(" not in text


def test_ranks_of_one_context_have_one_batch_and_share_its_sequences() -> None:
    alone, sharded = ("\n".join(lines(Knobs(), parallel=each)) for each in ("cp:4", "fsdp:2,cp:2"))
    assert "DistributedSampler" not in alone
    assert 'DistributedDataParallel(model, process_group=mesh["cp"].get_group())' in alone
    assert "num_replicas=2, rank=torch.distributed.get_rank() // 2)" in sharded
    assert 'fully_shard(module, mesh=mesh["fsdp", "cp"]._flatten())' in sharded
    assert 'context_parallel(mesh["cp"], buffers=[inputs, targets]' in alone


def test_shards_that_the_host_keeps_have_a_policy() -> None:
    text = "\n".join(lines(Knobs(), parallel="fsdp:4+offload"))
    assert 'mesh=mesh["fsdp"], offload_policy=torch.distributed.fsdp.CPUOffloadPolicy())' in text


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_the_first_fsdp_is_told_its_strategy_and_what_it_casts(precision: str) -> None:
    text = "\n".join(lines(Knobs(optimizer="adam", precision=precision), parallel="fsdp1:4+grad-op"))
    ast.parse(text)
    assert "ShardingStrategy.SHARD_GRAD_OP" in text
    assert ("mixed_precision=casts" in text) == (precision == "amp-bf16")
    assert "torch.autocast(" not in text


def test_the_first_fsdp_offloads_and_adapts_in_autocast() -> None:
    knobs = Knobs(precision="amp-bf16", adapter="lora:r=8")
    text = "\n".join(lines(knobs, parallel="fsdp1:4+offload"))
    ast.parse(text)
    assert "cpu_offload=torch.distributed.fsdp.CPUOffload(offload_params=True)" in text
    assert "torch.autocast(" in text


def test_the_first_fsdp_scales_and_clips_with_all_ranks() -> None:
    text = lines(Knobs(precision="amp-fp16", clip_grad_norm=1.0), parallel="fsdp1:4")
    assert 'scaler = torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler("cuda")' in text
    assert "model.clip_grad_norm_(1.0)" in text


def test_the_first_fsdp_names_no_gpu_on_the_cpu() -> None:
    assert not any("cuda" in line for line in lines(Knobs(), device_kind="cpu", parallel="fsdp1:4"))


@pytest.mark.parametrize("parallel", ["fsdp:4", "fsdp1:4"])
def test_inference_of_what_casts_itself_has_no_autocast(parallel: str) -> None:
    text = lines(Knobs(precision="amp-bf16"), training=False, parallel=parallel)
    assert not any("torch.autocast(" in line for line in text)


@pytest.mark.parametrize("parallel", ["zero2:8", "zero3:8+offload"])
def test_deepspeed_is_told_all_in_its_config_and_takes_the_steps(parallel: str) -> None:
    knobs = Knobs(optimizer="adamw", precision="amp-bf16", grad_accumulation=4, clip_grad_norm=1.0)
    text = "\n".join(lines(knobs, parallel=parallel))
    ast.parse(text)
    assert "'gradient_accumulation_steps': 4" in text
    assert "'bf16': {'enabled': True}" in text
    assert "'gradient_clipping': 1.0" in text
    assert ("'offload_param'" in text) == (parallel == "zero3:8+offload")
    assert ("zero.Init(" in text) == parallel.startswith("zero3")
    assert text.index("deepspeed.initialize(") < text.index("engine.backward(") < text.index("engine.step()")
    assert "optimizer.step()" not in text
    assert "torch.autocast(" not in text


def test_ranks_of_tensor_parallelism_get_one_batch() -> None:
    text = "\n".join(lines(Knobs(), parallel="fsdp:4,tp:2"))
    assert "DistributedSampler(dataset, num_replicas=4, rank=torch.distributed.get_rank() // 2)" in text
    assert "DistributedSampler" not in "\n".join(lines(Knobs(), parallel="tp:2"))


def test_a_pipeline_has_its_stage_its_schedule_and_the_rows_of_all_microbatches() -> None:
    text = "\n".join(lines(Knobs(), parallel="pp:2+gpipe+3,fsdp:4"))
    assert "DistributedSampler(dataset, num_replicas=4, rank=torch.distributed.get_rank() % 4)" in text
    assert "model, stage_index, 2, " in text
    assert "ScheduleGPipe(stage, 3, loss_fn=loss_fn)" in text
    assert text.index("fully_shard(module") < text.index("PipelineStage(")
    assert "DistributedSampler" not in "\n".join(lines(Knobs(), parallel="pp:2"))
    assert "ScheduleZBVZeroBubble(stages, 4" in "\n".join(lines(Knobs(), parallel="pp:2+zbvzerobubble"))


@pytest.mark.parametrize(("parallel", "is_first"), [("ddp:4", True), ("fsdp:4", False)])
def test_a_model_is_compiled_where_trials_compile_it(parallel: str, *, is_first: bool) -> None:
    text = lines(Knobs(compile=True), parallel=parallel)
    compiled, spread = (
        next(i for i, line in enumerate(text) if what in line)
        for what in ("torch.compile", "DistributedDataParallel(" if is_first else "fully_shard(")
    )
    assert (compiled < spread) == is_first


def test_each_of_several_ranks_wraps_its_model_before_the_optimizer_is_made():
    text = lines(Knobs(optimizer="adam"), parallel="ddp:4")
    wrapped, made = (next(i for i, line in enumerate(text) if what in line) for what in ("Parallel", "Adam"))
    assert wrapped < made
    assert "of 4 ranks" in text[wrapped]
    sampler = "sampler=torch.utils.data.distributed.DistributedSampler(dataset)"
    loader = "loader = torch.utils.data.DataLoader(dataset, batch_size=118"
    assert f"{loader}, {sampler})" in text
    alone = lines(Knobs())
    assert f"{loader})" in alone
    assert not any("Parallel" in line for line in alone)


@pytest.mark.parametrize(
    ("version", "variable"), [("2.8.0+cu128", "PYTORCH_CUDA_ALLOC_CONF"), ("2.9.0", "PYTORCH_ALLOC_CONF")]
)
def test_the_allocator_is_configured_by_the_variable_that_the_release_reads(version, variable):
    assert conf_variable(version) == variable
