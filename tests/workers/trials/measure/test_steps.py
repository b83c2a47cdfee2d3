"""The step loop: what a step does, in which order, and how it proves that it did it."""

from __future__ import annotations

import contextlib
import copy
import io
import random

import pytest
import torch

from autofit_workers.spec.errors import InapplicableError, InvalidTrialError, UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS
from autofit_workers.spec.protocol import Peaks, Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.trials.measure import after_steps, steps
from autofit_workers.workload.in_backward import make_in_backward
from autofit_workers.workload.step import Part, infer_step, train_step
from autofit_workers.workload.workload import Workload

CPU = torch.device("cpu")
FOLLOW_UP = ("evaluation", "checkpoint")


class CountingMeter:
    """A meter whose peaks count the steps since the last reset and whose clock counts all steps."""

    def __init__(self) -> None:
        self.num_resets = self.num_steps = self.since_reset = 0

    def reset(self) -> None:
        self.num_resets += 1
        self.since_reset = 0

    def peaks(self) -> Peaks:
        return Peaks(device_bytes=self.since_reset)

    def seconds_of(self, step) -> float:
        step()
        self.num_steps += 1
        self.since_reset += 1
        return float(self.num_steps)

    def attempt(self, action) -> str | None:
        try:
            action()
        except ValueError as error:
            return str(error)
        self.since_reset = -1
        return None


def workload_of(**parts) -> Workload:
    usual = {
        "build_model": lambda: torch.nn.Linear(8, 4),
        "make_batch": lambda batch_size, device: torch.ones(batch_size, 8, device=device),
        "loss": lambda model, batch: model(batch).sum(),
        "optimizer": "sgd",
    }
    return Workload(**{**usual, **parts})


def run(
    workload: Workload,
    meter: CountingMeter | None = None,
    progress: steps.Progress | None = None,
    **settings,
) -> tuple[CountingMeter, steps.Progress]:
    reference = WorkloadRef(kind="builtin", target="unused")
    spec = TrialSpec(workload=reference, **{"batch_size": 3, "probe": Probe.CPU, **settings})
    meter, progress = meter or CountingMeter(), progress or steps.Progress()
    steps.run(workload, spec, CPU, meter, progress)
    return meter, progress


def test_a_training_step_shows_its_phases_in_order_and_updates_the_model():
    workload = workload_of()
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    phases: list[str] = []
    train_step(workload, model, optimizer, torch.ones(2, 8), phase=phases.append)
    assert phases == ["forward", "backward", "optimizer"]
    assert torch.equal(model.weight, before - 0.1 * model.weight.grad)


def test_gradients_of_the_step_before_are_dropped_not_added():
    workload = workload_of()
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train_step(workload, model, optimizer, torch.ones(2, 8))
    assert torch.equal(model.weight.grad, torch.full((4, 8), 2.0))


def test_an_accumulated_step_is_one_step_over_all_of_its_batches():
    workload = workload_of(loss=lambda model, batch: model(batch).square().mean())
    batches = torch.randn(3, 4, 8)
    torch.manual_seed(0)
    model = workload.build_model()
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin))
    train_step(workload, twin, other, batches.flatten(0, 1))
    phases: list[str] = []
    for number, batch in enumerate(batches, start=1):
        part = Part(number=number, num_passes=3, num_batches=3)
        train_step(workload, model, optimizer, batch, part=part, phase=phases.append)
    assert phases == ["forward", "backward"] * 3 + ["optimizer"]
    assert torch.allclose(model.weight, twin.weight)


def test_a_trial_takes_two_batches_for_a_step_of_many():
    made = []
    workload = workload_of(make_batch=lambda size, device: made.append(size) or torch.ones(size, 8))
    knobs = Knobs(grad_accumulation=16)
    _, progress = run(workload, num_steps=2, num_warmup_steps=0, knobs=knobs, with_follow_up=False)
    assert (progress.num_steps_done, len(made)) == (2, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"step": lambda *_: None}, "has its own step"), ({"mode": "infer"}, "only in training")],
)
def test_gradients_are_accumulated_in_steps_that_the_trial_takes_itself(fields, message):
    with pytest.raises(InapplicableError, match=message):
        run(workload_of(**fields), knobs=Knobs(global_batch=6))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": lambda *_: None}, "cannot clip gradients: do so there"),
        ({"mode": "infer"}, "only in training"),
    ],
)
def test_gradients_are_clipped_in_steps_that_the_trial_takes_itself(fields, message):
    with pytest.raises(InapplicableError, match=f"{message}.* leave out --clip-grad-norm"):
        run(workload_of(**fields), knobs=Knobs(clip_grad_norm=1.0))


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_gradients_are_clipped_as_they_are_unscaled(scale):
    workload = workload_of(loss=lambda model, batch: 100 * model(batch).sum())
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    before = model.weight.detach().clone()
    train_step(workload, model, optimizer, torch.ones(2, 8), scaler=scaler, clip_grad_norm=3.0)
    assert torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item() == pytest.approx(3.0)
    assert torch.equal(model.weight, before - 0.1 * model.weight.grad)


@pytest.mark.parametrize(
    ("knobs", "fields", "message"),
    [
        ({"grad_accumulation": 2}, {}, "cannot be combined with --grad-accumulation and --global-batch: a"),
        ({"clip_grad_norm": 1.0}, {}, "cannot be combined with --clip-grad-norm: the norm is of all"),
        ({"precision": "amp-fp16"}, {}, "cannot be combined with --precision amp-fp16: its gradient scaler"),
        ({"set_to_none": False}, {}, "cannot be combined with --set-to-none false: it frees the gradients"),
        ({}, {"mode": "infer"}, "the optimizer steps only in training"),
        ({}, {"step": lambda *_: None}, "cannot step the optimizer in backward: do so there"),
        ({}, {"optimizer": lambda model: torch.optim.SGD(model.parameters())}, "takes the model"),
    ],
)
def test_what_needs_all_gradients_at_once_excludes_the_optimizer_in_backward(knobs, fields, message):
    with pytest.raises(InapplicableError, match=message):
        run(workload_of(**fields), knobs=Knobs(optimizer_in_backward=True, **knobs))


def test_in_backward_parameters_are_updated_as_after_it_and_gradients_dropped():
    def build():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    def optimizer(params):
        return torch.optim.SGD(params, lr=0.1, momentum=0.5)

    workload = workload_of(build_model=build, optimizer=optimizer)
    after, within = build(), build()
    within[0].bias.requires_grad_(False)
    after[0].bias.requires_grad_(False)
    optimizers = make_in_backward(workload, within)
    assert len(optimizers) == 3
    plain = optimizer(after.parameters())
    for _ in range(2):
        train_step(workload, within, optimizers, torch.ones(3, 8), in_backward=True)
        train_step(workload, after, plain, torch.ones(3, 8))
        assert all(parameter.grad is None for parameter in within.parameters())
    for one, other in zip(within.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_trial_steps_in_backward():
    _, progress = run(workload_of(), knobs=Knobs(optimizer="adam", optimizer_in_backward=True))
    assert progress.num_steps_done == 4


def test_allocator_settings_are_refused_where_there_is_no_such_allocator():
    with pytest.raises(UnsupportedError, match="max_split:64 does not apply to cpu: choose default"):
        run(workload_of(), knobs=Knobs(allocator="max_split:64"))


def test_a_step_of_the_workloads_own_replaces_the_whole_step():
    seen = []
    workload = workload_of(step=lambda model, optimizer, batch: seen.append((model, optimizer, batch)))
    phases: list[str] = []
    train_step(workload, "model", "optimizer", "batch", phase=phases.append)
    assert seen == [("model", "optimizer", "batch")]
    assert phases == ["forward"]


def test_autocast_covers_the_forward_pass_and_not_backward():
    @contextlib.contextmanager
    def autocast():
        covered.append("enter")
        yield
        covered.append("leave")

    covered: list[str] = []
    workload = workload_of()
    model = workload.build_model()
    train_step(
        workload,
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.ones(2, 8),
        autocast=autocast,
        phase=covered.append,
    )
    assert covered == ["forward", "enter", "leave", "backward", "optimizer"]


def test_inference_keeps_no_graph():
    outputs = []
    workload = workload_of(loss=lambda model, batch: outputs.append(model(batch)))
    phases: list[str] = []
    infer_step(workload, workload.build_model(), torch.ones(2, 8), phase=phases.append)
    assert not outputs[0].requires_grad
    assert phases == ["forward"]


def test_peaks_are_reset_after_the_warm_up_and_the_first_step_is_told_apart():
    meter, progress = run(workload_of(), num_warmup_steps=2, num_steps=3)
    assert meter.num_resets == 2 + len(FOLLOW_UP)
    assert progress.first_step.device_bytes == 1
    assert progress.steady.device_bytes == 3
    assert progress.num_steps_done == 5
    assert progress.step_seconds == [3.0, 4.0, 5.0]
    assert progress.median_step_seconds == 4.0


def test_without_a_warm_up_the_first_step_is_steady_too():
    meter, progress = run(workload_of(), num_warmup_steps=0, num_steps=2)
    assert meter.num_resets == 1 + len(FOLLOW_UP)
    assert progress.first_step.device_bytes == 1
    assert progress.steady.device_bytes == 2


def test_what_a_failing_step_had_done_before_stays_known():
    batches = iter([torch.ones(3, 8)] * 2)
    meter, progress = CountingMeter(), steps.Progress()
    spec = TrialSpec(
        workload=WorkloadRef(kind="builtin", target="unused"), batch_size=3, probe=Probe.CPU, num_steps=9
    )
    with pytest.raises(StopIteration):
        steps.run(workload_of(make_batch=lambda *_: next(batches)), spec, CPU, meter, progress)
    assert progress.num_steps_done == 2
    assert progress.first_step.device_bytes == 1


def test_a_step_that_changes_no_parameter_is_invalid():
    with pytest.raises(InvalidTrialError, match="4 training steps changed no parameter"):
        run(workload_of(step=lambda model, optimizer, batch: model(batch).sum().backward()))


def test_a_learning_rate_of_zero_is_still_work():
    _, progress = run(workload_of(optimizer=lambda params: torch.optim.SGD(params, lr=0.0)))
    assert progress.num_steps_done == 4


def test_an_update_through_data_is_still_work():
    def step(model, optimizer, batch):
        for parameter in model.parameters():
            parameter.data.add_(1)

    _, progress = run(workload_of(step=step))
    assert progress.num_steps_done == 4


def test_a_batch_of_another_size_is_invalid():
    with pytest.raises(InvalidTrialError, match="ignores the batch size"):
        run(workload_of(make_batch=lambda batch_size, device: torch.ones(5, 8)))


def test_a_loss_that_is_no_scalar_is_the_users_error():
    with pytest.raises(WorkloadError, match="scalar"):
        run(workload_of(loss=lambda model, batch: model(batch)))


def test_the_mode_of_the_spec_overrides_the_workloads():
    modes = []

    def loss(model, batch):
        modes.append((model.training, torch.is_grad_enabled()))
        return model(batch).sum()

    run(workload_of(loss=loss), num_warmup_steps=0, num_steps=1)
    run(workload_of(loss=loss), num_warmup_steps=0, num_steps=1, setup=Setup(mode="infer"))
    assert modes == [(True, True), (False, False), (False, False)]  # the second is the evaluation


def test_the_optimizer_knob_overrides_the_workloads():
    optimizers = []

    def step(model, optimizer, batch):
        optimizers.append(type(optimizer))
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    run(workload_of(step=step), num_steps=1, num_warmup_steps=0)
    run(workload_of(step=step), num_steps=1, num_warmup_steps=0, knobs=Knobs(optimizer="adamw"))
    assert optimizers == [torch.optim.SGD, torch.optim.AdamW]


def test_amp_runs_matrix_products_in_bfloat16():
    dtypes = []

    def loss(model, batch):
        output = model(batch)
        dtypes.append(output.dtype)
        return output.sum()

    run(workload_of(loss=loss), num_steps=1, num_warmup_steps=0, knobs=Knobs(precision="amp-bf16"))
    run(workload_of(loss=loss), num_steps=1, num_warmup_steps=0)
    assert dtypes == [torch.bfloat16] * 2 + [torch.float32] * 2  # a step and the evaluation each


@pytest.mark.parametrize("optimizer_impl", OPTIMIZER_IMPLS)
def test_float16_steps_update_the_model_under_a_scaler(optimizer_impl):
    dtypes = []

    def loss(model, batch):
        output = model(batch)
        dtypes.append((output.dtype, model.weight.grad))
        return output.float().square().mean()

    knobs = Knobs(precision="amp-fp16", optimizer="adam", optimizer_impl=optimizer_impl)
    _, progress = run(workload_of(loss=loss), num_steps=2, num_warmup_steps=0, knobs=knobs)
    assert dtypes[:2] == [(torch.float16, None)] * 2
    assert progress.num_steps_done == 2


def test_bf16_and_channels_last_reach_the_model_and_its_batches():
    seen = []

    def loss(model, batch):
        seen.extend(
            (tensor.dtype, tensor.is_contiguous(memory_format=torch.channels_last))
            for tensor in (model.weight, batch)
        )
        return model(batch).sum()

    workload = workload_of(
        build_model=lambda: torch.nn.Conv2d(3, 4, 3),
        make_batch=lambda batch_size, device: torch.ones(batch_size, 3, 5, 5, device=device),
        loss=loss,
    )
    knobs = Knobs(precision="bf16", memory_format="channels_last")
    run(workload, num_steps=1, num_warmup_steps=0, knobs=knobs)
    assert seen == [(torch.bfloat16, True)] * 4  # of a step and of the evaluation


def test_gradients_may_be_set_to_zero_instead_of_dropped():
    gradients = []

    def loss(model, batch):
        gradients.append(model.weight.grad)
        return model(batch).sum()

    run(workload_of(loss=loss), num_steps=2, num_warmup_steps=0, knobs=Knobs(set_to_none=False))
    assert gradients[0] is None
    assert gradients[1] is not None


def test_the_same_seed_gives_the_same_model_and_batches():
    def first_batch(seed):
        seen = []

        def make_batch(batch_size, device):
            seen.append((torch.rand(batch_size, 8), random.random()))
            return seen[-1][0]

        run(workload_of(make_batch=make_batch), seed=seed, num_steps=1, num_warmup_steps=0)
        return seen[0]

    (batch, number), (same_batch, same_number), (other, other_number) = map(first_batch, (7, 7, 8))
    assert torch.equal(batch, same_batch)
    assert number == same_number
    assert not torch.equal(batch, other)
    assert number != other_number


def test_a_training_is_followed_by_an_evaluation_and_a_checkpoint():
    beats = []
    progress = steps.Progress(report=beats.append)
    run(workload_of(), progress=progress, num_warmup_steps=1, num_steps=2)
    phases = ["build", "warm-up step 1", "step 1", "step 2", *FOLLOW_UP]
    assert [beat.phase for beat in beats] == phases
    assert [beat.num_steps_done for beat in beats] == [0, 0, 1, 2, 3, 3]
    assert (progress.evaluation, progress.checkpoint) == (Peaks(device_bytes=-1),) * 2
    assert int(progress.remarks["checkpoint_bytes"]) > 4 * 8 * 4


def test_inference_is_followed_by_nothing():
    _, progress = run(workload_of(), setup=Setup(mode="infer"))
    assert progress.phase == "step 3"
    assert progress.remarks == {}


def test_the_evaluation_keeps_no_graph_and_puts_every_module_back():
    seen = []

    class Model(torch.nn.Sequential):
        def forward(self, batch):
            seen.append((self.training, self[1].training, torch.is_grad_enabled()))
            return super().forward(batch)

    def build_model():
        built.append(Model(torch.nn.Linear(8, 4), torch.nn.Dropout()))
        return built[0]

    def step(model, optimizer, batch):
        model[1].eval()  # as who freezes a part
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    built = []
    run(workload_of(build_model=build_model, step=step), num_warmup_steps=0, num_steps=1)
    assert seen == [(True, False, True), (False, False, False)]
    assert (built[0].training, built[0][1].training) == (True, False)


def test_a_workload_that_cannot_be_evaluated_or_saved_is_none_the_worse_for_it():
    def loss(model, batch):
        if not model.training:
            raise ValueError("this model has no loss in evaluation")
        return model(batch).sum()

    class Unsaved(torch.nn.Linear):
        def state_dict(self, *_, **__):
            raise ValueError("nor a state")

    _, progress = run(workload_of(loss=loss, build_model=lambda: Unsaved(8, 4)))
    assert progress.remarks == {
        "evaluation": "could not be run: this model has no loss in evaluation",
        "checkpoint": "could not be run: nor a state",
    }
    assert progress.evaluation == Peaks()


@pytest.mark.parametrize("phase", FOLLOW_UP)
def test_running_out_of_memory_after_the_steps_is_where_the_trial_ends(phase):
    def loss(model, batch):
        if phase == "evaluation" and not model.training:
            raise MemoryError
        return model(batch).sum()

    class Large(torch.nn.Linear):
        def state_dict(self, *arguments, **keywords):
            if phase == "checkpoint":
                raise MemoryError
            return super().state_dict(*arguments, **keywords)

    progress = steps.Progress()
    with pytest.raises(MemoryError):
        run(workload_of(loss=loss, build_model=lambda: Large(8, 4)), progress=progress)
    assert progress.phase == phase
    assert progress.num_steps_done == 4
    assert progress.steady.device_bytes == 3


def test_steps_that_use_nothing_of_the_device_are_invalid():
    class Idle(CountingMeter):
        def peaks(self) -> Peaks:
            return Peaks(allocated_bytes=0, device_bytes=500)

    with pytest.raises(InvalidTrialError, match="used no memory of the device"):
        run(workload_of(), meter=Idle())


def test_generators_and_flags_are_afterwards_as_before():
    def state():
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            torch.get_num_threads(),
        )

    def loss(model, batch):
        torch.set_default_dtype(torch.float64)
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        torch.set_num_threads(before[-1] + 1)
        torch.rand(1), random.random()
        return model(batch).sum()

    def make_batch(batch_size, device):
        return torch.ones(batch_size, 8, dtype=torch.float32)

    before = state()
    run(
        workload_of(loss=loss, make_batch=make_batch),
        num_warmup_steps=0,
        num_steps=1,
        knobs=Knobs(precision="tf32"),
    )
    assert state() == before
    with pytest.raises(InvalidTrialError):
        run(workload_of(loss=loss, make_batch=lambda *_: torch.ones(5, 8)))
    assert state() == before


def test_a_checkpoint_writes_every_tensor_and_keeps_none():
    model = torch.nn.Linear(1000, 100)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizers": [optimizer.state_dict()]}, file)
    assert after_steps.save_checkpoint(model, [optimizer]) == file.getbuffer().nbytes


def test_a_plan_of_convolutions_is_applied_to_the_layers_it_names():
    workload = workload_of(
        build_model=lambda: torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Conv2d(3, 2, 1)),
        make_batch=lambda size, device: torch.ones(size, 2, 6, 6, device=device),
    )
    spec = TrialSpec(
        workload=WorkloadRef(kind="builtin", target="unused"),
        batch_size=2,
        probe=Probe.CPU,
        knobs=Knobs(conv_algo="mixed"),
        conv_plan=(("0", "im2col"), ("1", "onednn")),
    )
    with steps.conditions(spec, CPU, {}) as rewriting:
        assert rewriting is not None
        trial = steps.Trial(workload, spec, CPU, CountingMeter(), steps.Progress(), rewriting=rewriting)
        trial.take_steps()
    assert rewriting.rewritten == {"0": 4}
