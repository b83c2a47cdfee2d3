"""The step loop: what a step does, in which order, and how it proves that it did it."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch

from workers.errors import InvalidTrialError
from workers.measure import steps
from workers.protocol import OPTIMIZER_IMPLS, Knobs, Peaks, Probe, TrialSpec, WorkloadRef
from workers.workload import Workload, WorkloadError

CPU = torch.device("cpu")


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


def workload_of(**parts) -> Workload:
    usual = {
        "build_model": lambda: torch.nn.Linear(8, 4),
        "make_batch": lambda batch_size, device: torch.ones(batch_size, 8, device=device),
        "loss": lambda model, batch: model(batch).sum(),
        "optimizer": "sgd",
    }
    return Workload(**{**usual, **parts})


def run(workload: Workload, **settings) -> tuple[CountingMeter, steps.Progress]:
    reference = WorkloadRef(kind="builtin", target="unused")
    spec = TrialSpec(workload=reference, **{"batch_size": 3, "probe": Probe.CPU, **settings})
    meter, progress = CountingMeter(), steps.Progress()
    steps.run(workload, spec, CPU, meter, progress)
    return meter, progress


def test_a_training_step_shows_its_phases_in_order_and_updates_the_model():
    workload = workload_of()
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    phases: list[str] = []
    steps.train_step(workload, model, optimizer, torch.ones(2, 8), phase=phases.append)
    assert phases == ["forward", "backward", "optimizer"]
    assert torch.equal(model.weight, before - 0.1 * model.weight.grad)


def test_gradients_of_the_step_before_are_dropped_not_added():
    workload = workload_of()
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        steps.train_step(workload, model, optimizer, torch.ones(2, 8))
    assert torch.equal(model.weight.grad, torch.full((4, 8), 2.0))


def test_a_step_of_the_workloads_own_replaces_the_whole_step():
    seen = []
    workload = workload_of(step=lambda model, optimizer, batch: seen.append((model, optimizer, batch)))
    phases: list[str] = []
    steps.train_step(workload, "model", "optimizer", "batch", phase=phases.append)
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
    steps.train_step(
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
    steps.infer_step(workload, workload.build_model(), torch.ones(2, 8), phase=phases.append)
    assert not outputs[0].requires_grad
    assert phases == ["forward"]


def test_peaks_are_reset_after_the_warm_up_and_the_first_step_is_told_apart():
    meter, progress = run(workload_of(), num_warmup_steps=2, num_steps=3)
    assert meter.num_resets == 2
    assert progress.first_step.device_bytes == 1
    assert meter.peaks().device_bytes == 3
    assert progress.num_steps_done == 5
    assert progress.step_seconds == [3.0, 4.0, 5.0]
    assert progress.median_step_seconds == 4.0


def test_without_a_warm_up_the_first_step_is_steady_too():
    meter, progress = run(workload_of(), num_warmup_steps=0, num_steps=2)
    assert meter.num_resets == 1
    assert progress.first_step.device_bytes == 1
    assert meter.peaks().device_bytes == 2


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
    run(workload_of(loss=loss), num_warmup_steps=0, num_steps=1, mode="infer")
    assert modes == [(True, True), (False, False)]


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
    assert dtypes == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("optimizer_impl", OPTIMIZER_IMPLS)
def test_float16_steps_update_the_model_under_a_scaler(optimizer_impl):
    dtypes = []

    def loss(model, batch):
        output = model(batch)
        dtypes.append((output.dtype, model.weight.grad))
        return output.float().square().mean()

    knobs = Knobs(precision="amp-fp16", optimizer="adam", optimizer_impl=optimizer_impl)
    _, progress = run(workload_of(loss=loss), num_steps=2, num_warmup_steps=0, knobs=knobs)
    assert dtypes == [(torch.float16, None)] * 2
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
    assert seen == [(torch.bfloat16, True)] * 2


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
