"""Lines of Python for a training script to run with a knob setting; defaults are left out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.found import Best
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import KNOBS, Knobs, allocator, compile  # noqa: A004 - PyTorch's own word
from autofit_workers.spec.knobs.base import QUANTIZATIONS
from autofit_workers.spec.knobs.deepspeed_config import deepspeed_config
from autofit_workers.spec.knobs.optimizer import NAMED, NamedOptimizer
from autofit_workers.spec.parallel_kinds import CP, DDP, EP, FSDP, PP, REPLICATE, TP, FirstFsdp, Zero
from autofit_workers.spec.pipeline import Pipeline
from autofit_workers.spec.protocol import ScriptCall
from autofit_workers.spec.setup import ALONE, Parallel
from autofit_workers.spec.workloads.launcher_commands import launcher_command

_AUTOCAST_TYPES = {"amp-fp16": "float16", "amp-bf16": "bfloat16"}
_IMPLEMENTATIONS = {
    "default": "",
    "foreach": ", foreach=True",
    "fused": ", fused=True",
    "loop": ", foreach=False",
}
_ZEROS = {True: "", False: "set_to_none=False"}  # PyTorch's default is to drop gradients


def call_lines(settings: TuneSettings, best: Best) -> Iterator[str]:
    """Yields the command that runs a user's script at the best batch, below comments on what to change in it.

    Args:
        settings: settings of the search; must name a script.
        best: configuration with the best batch.
    """
    assert settings.script is not None
    for line in (*_conv_lines(best.knobs, GPU_KIND), *_lines_of_the_model(best.knobs)):
        yield f"# in it: {line}"
    call = ScriptCall(arguments=settings.script_arguments, batch_argument=settings.batch_argument)
    before = [] if settings.batch_variable is None else [f"{settings.batch_variable}={best.batch_size}"]
    if settings.batch_name is not None:
        yield f"# in it: {settings.batch_name} = {best.batch_size}"
    elif call.sets_loader and not before:
        yield f"# in it: batch_size={best.batch_size} of its DataLoader"
    launcher = launcher_command(settings.launcher, settings.num_processes, settings.num_nodes)
    words = [*(launcher or ("python",)), settings.script, *call.arguments_at(best.batch_size)]
    yield " ".join((*before, shlex.join(words)))


def script_lines(
    knobs: Knobs,
    *,
    batch_size: int,
    device_kind: str,
    training: bool,
    parallel: Parallel = ALONE.parallel,
    torch_release: str | None = None,
) -> Iterator[str]:
    """Yields lines of Python that a user copies into a training script to run it with a configuration.

    They are in the order in which a script needs them.

    Args:
        knobs: knob values (precision, optimizer, …) to apply; defaults need no lines.
        batch_size: samples a batch of one rank; for a pipeline, of one microbatch.
        device_kind: `cuda` or `cpu`. Lines on TF32 and cuDNN are only for `cuda`.
        training: whether the script trains; else there are only lines of a forward pass.
        parallel: how several processes train together; by default there is one.
        torch_release: release of PyTorch that will run; None for the installed one.
    """
    yield from allocator.script_lines(knobs.allocator, torch_release)  # before PyTorch is imported
    yield from _conv_lines(knobs, device_kind)
    for name in KNOBS:
        if name != "allocator":
            yield from _lines_of(name, knobs)
    sampler = _sampler(parallel)
    rows = batch_size * parallel.num_microbatches
    yield f"loader = torch.utils.data.DataLoader(dataset, batch_size={rows}{sampler})"
    yield from _lines_of_the_model(knobs)
    if training and knobs.checkpointing != "none":
        how = "" if knobs.checkpointing == "blocks" else f', "{knobs.checkpointing}"'
        yield f"autofit.checkpoint_blocks(model{how})  # repeated blocks run again in backward"
    conversions = _conversions(knobs)
    if conversions:
        yield f"model = model.to({conversions})  # before it is moved to the GPU"
    if knobs.adapter is not None or knobs.base is not None:
        yield _adapt_line(knobs)
    compiling = (
        (f"{compile.script_line(knobs.compile)}  # once it is on its device",) if knobs.compile else ()
    )
    in_order = (compiling, _lines_of_ranks(parallel, knobs, device_kind))
    for lines in reversed(in_order) if parallel.shards else in_order:  # the order in which trials apply them
        yield from lines
    if training:
        yield from _optimizer_lines(knobs)
    if parallel.zero is not None:  # DeepSpeed's engine does the rest of the step
        yield from _lines_of_zero(parallel.zero, knobs, batch_size)
        return
    if training and knobs.precision == "amp-fp16":
        sharded = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"  # all ranks skip alike
        scaler = "torch.amp.GradScaler" if parallel.fsdp1 is None else sharded
        yield f'scaler = {scaler}("{device_kind}")'
    if conversions:
        yield f"inputs = inputs.to({conversions})"
    if training:
        yield from _training_lines(knobs, device_kind, knobs.num_batches(batch_size), parallel)
    elif (dtype := _AUTOCAST_TYPES.get(knobs.precision)) and parallel.autocasts(
        adapted=knobs.adapter is not None
    ):
        yield _autocast(device_kind, dtype)
        yield "    output = ..."


def _sampler(parallel: Parallel) -> str:
    """Code of the `sampler` argument of a `DataLoader` that gives each replica of the model its own batches.

    Ranks that share tensors, a context or a pipeline form one replica and load the same batch. The code is
    empty if there is only one replica.
    """
    if parallel.num_replicas == 1:
        return ""
    num_stages = parallel.degree(PP)
    shared = parallel.num_ranks // parallel.num_replicas // num_stages
    rank = "rank=torch.distributed.get_rank()"
    rank += f" % {parallel.num_ranks // num_stages}" if num_stages > 1 else ""
    rank += f" // {shared}" if shared > 1 else ""
    is_own = parallel.num_replicas == parallel.num_ranks
    options = "" if is_own else f", num_replicas={parallel.num_replicas}, {rank}"
    return f", sampler=torch.utils.data.distributed.DistributedSampler(dataset{options})"


def _lines_of_ranks(parallel: Parallel, knobs: Knobs, device_kind: str) -> Iterator[str]:
    """Yields code lines that set up the ranks: process group, mesh, and the wrapper of the model."""
    if parallel.degree(DDP) > 1:
        which = f"{'on its GPU, of' if device_kind == GPU_KIND else 'one of'} {parallel.num_ranks} ranks"
        yield f"model = torch.nn.parallel.DistributedDataParallel(model)  # {which}"
    if parallel.fsdp1 is not None:
        yield from _lines_of_fsdp1(parallel.fsdp1, knobs, device_kind)
        return
    if parallel.is_one_process:
        where = f"on {parallel.num_ranks} cards, where it stays"
        yield f'# model: of from_pretrained(..., device_map="auto"), which puts it {where}'
    if not parallel.shards or parallel.zero is not None:
        return
    if parallel.pipeline is not None:
        yield "# model: this rank's blocks; the first stage has what is before them, the last what is after"
    kinds, degrees = zip(*parallel.degrees, strict=True)
    of_mesh = f'"{device_kind}", {degrees}, mesh_dim_names={kinds}'
    yield f"mesh = torch.distributed.device_mesh.init_device_mesh({of_mesh})"
    if parallel.degree(CP) > 1:
        buffers = f'mesh["{CP}"], buffers=[inputs, targets], buffer_seq_dims=[1, 1]'
        yield "# forward and backward of a step, with attention by scaled_dot_product_attention, are in:"
        yield f"#     with torch.distributed.tensor.experimental.context_parallel({buffers})"
    if parallel.has_ddp:
        ranks = f'process_group=mesh["{CP}"].get_group()'
        yield f"model = torch.nn.parallel.DistributedDataParallel(model, {ranks})"
    yield from _lines_of_plans(parallel)
    if parallel.degree(FSDP) > 1:
        mesh = f'mesh["{REPLICATE}", "{FSDP}"]' if parallel.degree(REPLICATE) > 1 else f'mesh["{FSDP}"]'
        if parallel.degree(CP) > 1:  # parameters are sharded over both dimensions of the mesh
            mesh = f'mesh["{FSDP}", "{CP}"]._flatten()'
        dtype = _AUTOCAST_TYPES.get(knobs.precision)
        policy = "" if dtype is None else ", mp_policy=policy"
        if dtype is not None:  # fully_shard casts by itself, without autocast
            casts = f"param_dtype=torch.{dtype}, reduce_dtype=torch.float32"
            yield f"policy = torch.distributed.fsdp.MixedPrecisionPolicy({casts})  # and no autocast"
        if parallel.offloads_shards:
            policy += ", offload_policy=torch.distributed.fsdp.CPUOffloadPolicy()"
            yield '# ranks meet by init_process_group("cpu:gloo,cuda:nccl"): the host steps'
        yield f"for module in (*blocks, model):  # {FSDP}: each repeated block, then the model"
        yield f"    torch.distributed.fsdp.fully_shard(module, mesh={mesh}{policy})"
    if parallel.pipeline is not None:
        yield from _lines_of_pipeline(parallel.pipeline, device_kind)


def _lines_of_plans(parallel: Parallel) -> Iterator[str]:
    """Yields code lines for tensor and expert parallelism, by the sharding plan that the model itself has."""
    if parallel.degree(TP) > 1:
        yield f'# tensor parallelism by the plan of the model, on mesh["{TP}"]'
    if parallel.degree(EP) > 1:
        arguments = f'model, mesh["{EP}"], mesh["{EP}"], plan, ep_implementation="all_reduce"'
        yield "# plan: model.ep_plan, with the numbers of layers in the place of *"
        yield f"transformers.distributed.expert_parallel.apply_expert_parallelism({arguments})"


def _lines_of_pipeline(pipeline: Pipeline, device_kind: str) -> Iterator[str]:
    yield "stage = torch.distributed.pipelining.PipelineStage("
    yield f'    model, stage_index, {pipeline.num_stages}, torch.device("{device_kind}"),'
    yield f'    input_args=..., output_args=..., group=mesh["{PP}"].get_group(),  # of a microbatch\'s shapes'
    yield ")"
    given = "stage" if pipeline.num_stages == pipeline.num_ranks else "stages"
    arguments = f"{given}, {pipeline.num_microbatches}, loss_fn=loss_fn"
    yield f"schedule = torch.distributed.pipelining.{pipeline.class_name}({arguments})"
    yield "# a step: schedule.step(inputs, target=targets, losses=losses, return_outputs=False), on the first"
    yield "# stage with inputs, on the last with targets; it runs forward and backward of all microbatches"


def _lines_of_zero(zero: Zero, knobs: Knobs, batch_size: int) -> Iterator[str]:
    config = deepspeed_config(zero, knobs, batch_size, knobs.num_batches(batch_size))
    yield f"config = {config!r}"
    if zero.stage == 3:
        yield "# build and load the model in: with deepspeed.zero.Init(config_dict_or_path=config)"
    if zero.offloads:
        yield "# of adam and adamw the optimizer is deepspeed.ops.adam.DeepSpeedCPUAdam"
    yield "engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)"
    yield "loss = ...  # of engine(inputs), without autocast"
    yield "engine.backward(loss)"
    yield "engine.step()  # clips, steps after as many batches as config says, and drops gradients"


def _lines_of_fsdp1(how: FirstFsdp, knobs: Knobs, device_kind: str) -> Iterator[str]:
    """Yields code lines that wrap the model in `FullyShardedDataParallel`."""
    yield "policy = torch.distributed.fsdp.wrap.ModuleWrapPolicy({...})  # the classes of repeated blocks"
    dtype = _AUTOCAST_TYPES.get(knobs.precision)
    casts = "" if dtype is None else ", mixed_precision=casts"
    if dtype is not None:
        types = f"param_dtype=torch.{dtype}, reduce_dtype=torch.float32"
        beside = "and no autocast" if knobs.adapter is None else "in autocast"
        yield f"casts = torch.distributed.fsdp.MixedPrecision({types})  # {beside}"
    if how.offloads:
        yield '# ranks meet by init_process_group("cpu:gloo,cuda:nccl"): the host steps'
    yield "model = torch.distributed.fsdp.FullyShardedDataParallel("
    yield f"    model, sharding_strategy=torch.distributed.fsdp.ShardingStrategy.{how.strategy},"
    if how.offloads:
        yield "    cpu_offload=torch.distributed.fsdp.CPUOffload(offload_params=True),"
    yield "    auto_wrap_policy=policy,"
    device = ", device_id=torch.cuda.current_device()" if device_kind == GPU_KIND else ""
    yield f"    use_orig_params=True{device}{casts},"
    yield ")"


def _conv_lines(knobs: Knobs, device_kind: str) -> tuple[str, ...]:
    is_default = knobs.conv_algo in (Knobs().conv_algo, "onednn")  # defaults on a GPU and on the CPU
    return () if is_default else conv.find(knobs.conv_algo).lines_on(device_kind)


def _lines_of(name: str, knobs: Knobs) -> tuple[str, ...]:
    lines = KNOBS[name].script_lines
    return () if lines is None else lines(getattr(knobs, name))


def _lines_of_the_model(knobs: Knobs) -> Iterator[str]:
    for knob in KNOBS.values():
        if knob.model_lines is not None:
            yield from knob.model_lines(getattr(knobs, knob.name), knobs)


def _conversions(knobs: Knobs) -> str:
    parts = []
    if knobs.precision == "bf16":
        parts.append("dtype=torch.bfloat16")
    if knobs.memory_format == "channels_last":
        parts.append("memory_format=torch.channels_last")
    return ", ".join(parts)


def _adapt_line(knobs: Knobs) -> str:
    told = {"adapter": knobs.adapter, "base": knobs.base}
    if knobs.precision != Knobs().precision and (knobs.adapter is not None or knobs.base in QUANTIZATIONS):
        told["precision"] = knobs.precision
    options = ", ".join(f"{name}={json.dumps(value)}" for name, value in told.items() if value is not None)
    return f"model = autofit.adapt(model, {options})  # before it is moved to the GPU"


def _optimizer_lines(knobs: Knobs) -> Iterator[str]:
    """Yields code lines that make the optimizer; none for the script's own with its defaults."""
    implementation = _IMPLEMENTATIONS[knobs.optimizer_impl]
    named = NAMED.get(knobs.optimizer or "")
    if named is None:
        if knobs.optimizer_in_backward:
            yield from _in_backward_lines(f"...([p]{implementation})")
        elif implementation:
            yield f"optimizer = ...(model.parameters(){implementation})"
        return
    options = "".join(f", {name}={value!r}" for name, value in named.options.items()) + implementation
    if named.tells_hidden_weights:
        yield "hidden = autofit.hidden_weights(model)  # matrices, without embeddings and the output layer"
        yield "rest = [p for p in model.parameters() if all(p is not weight for weight in hidden)]"
    if knobs.optimizer_in_backward:
        yield from _in_backward_lines(_of_one_parameter(named, options))
    elif named.rest:
        yield f"optimizers = [{named.path}(hidden{options}), {named.rest}(rest)]"
    elif named.hidden:
        yield f'groups = [{{"params": hidden, **{dict(named.hidden)!r}}}, {{"params": rest}}]'
        yield f"optimizer = {named.path}(groups{options})"
    else:
        yield f"optimizer = {named.path}(model.parameters(){options})"


def _of_one_parameter(named: NamedOptimizer, options: str) -> str:
    """Code of an expression that makes an optimizer for one parameter `p`, to step it during backward.

    Args:
        named: optimizer's class and, if it treats hidden weights differently, the class for the others.
        options: further arguments of the optimizer, as code that begins with a comma; may be empty.
    """
    made = f"{named.path}([p]{options})"
    if not named.tells_hidden_weights:
        return made
    of_hidden = (
        f'{named.path}([{{"params": [p], **{dict(named.hidden)!r}}}]{options})' if named.hidden else made
    )
    of_rest = f"{named.rest}([p])" if named.rest else made
    return f"{of_rest} if any(p is other for other in rest) else {of_hidden}"


def _in_backward_lines(made: str) -> Iterator[str]:
    yield f"optimizers = {{p: {made} for p in model.parameters() if p.requires_grad}}"
    yield "def step_in_backward(parameter):"
    yield "    optimizers[parameter].step()"
    yield "    optimizers[parameter].zero_grad()"
    yield "for parameter in optimizers:"
    yield "    parameter.register_post_accumulate_grad_hook(step_in_backward)"


def _training_lines(knobs: Knobs, device_kind: str, num_batches: int, parallel: Parallel) -> Iterator[str]:
    """Yields those code lines of a training step, from `zero_grad` to `optimizer.step`, that knobs change.

    Args:
        knobs: knob values (precision, gradient clipping, …) to apply.
        device_kind: `cuda` or `cpu`, for autocast.
        num_batches: batches whose gradients are accumulated in an optimizer step.
        parallel: how several processes train together.
    """
    dtype = _AUTOCAST_TYPES.get(knobs.precision)
    accumulates, scales = num_batches > 1, dtype == "float16"
    zero = f"{'model' if _are_several(knobs) else 'optimizer'}.zero_grad({_ZEROS[knobs.set_to_none]})"
    is_told = not knobs.set_to_none or (_are_several(knobs) and not knobs.optimizer_in_backward)
    if is_told and not accumulates:
        yield zero
    if dtype is not None and parallel.autocasts(adapted=knobs.adapter is not None):
        yield _autocast(device_kind, dtype)
        share = f" / {num_batches}" if accumulates else ""
        yield (
            f"    loss = ...{share}  # forward pass and loss; backward outside"
            if parallel.pipeline is None
            else "    ...  # in the forward of the stage, and in loss_fn; not around the schedule"
        )
    elif accumulates:
        yield f"loss = loss / {num_batches}  # the optimizer steps after {num_batches} batches"
    if knobs.optimizer_in_backward:
        yield "loss.backward()  # steps all optimizers, and drops the gradients"
        return
    step = _step_lines(knobs, scales=scales, shards=parallel.fsdp1 is not None)
    if scales:
        yield "scaler.scale(loss).backward()"
    elif accumulates or len(step) > 1:
        yield "loss.backward()"
    if accumulates:
        yield f"if (number + 1) % {num_batches} == 0:  # of the batches, counted from 0"
        yield from (f"    {line}" for line in (*step, zero))
    elif len(step) > 1:
        yield from step


def _step_lines(knobs: Knobs, *, scales: bool, shards: bool) -> list[str]:
    """Code lines from clipping the gradients to `optimizer.step()`.

    Args:
        scales: whether a `GradScaler` scales the loss, as with fp16.
        shards: whether the model is wrapped in `FullyShardedDataParallel`. Each rank then has only parts of
            the gradients, so the model's own `clip_grad_norm_` is called.
    """
    clipping: list[str] = []
    if knobs.clip_grad_norm is not None:
        clipping += _of_each("scaler.unscale_(optimizer)", knobs) if scales else ()
        of_all = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {knobs.clip_grad_norm})"
        clipping.append(f"model.clip_grad_norm_({knobs.clip_grad_norm})" if shards else of_all)
    if scales:
        return [*clipping, *_of_each("scaler.step(optimizer)", knobs), "scaler.update()"]
    return [*clipping, *_of_each("optimizer.step()", knobs)]


def _of_each(line: str, knobs: Knobs) -> tuple[str, ...]:
    """Code that runs a line on `optimizer`: in a `for` loop if there are several, else the line alone."""
    return ("for optimizer in optimizers:", f"    {line}") if _are_several(knobs) else (line,)


def _are_several(knobs: Knobs) -> bool:
    return knobs.optimizer is not None and bool(NAMED[knobs.optimizer].rest)


def _autocast(device_kind: str, dtype: str) -> str:
    return f'with torch.autocast("{device_kind}", dtype=torch.{dtype}):'
