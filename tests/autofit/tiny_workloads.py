"""Workloads for the tests of the Python interface: quick to trace, but with gigabytes on the GPU."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autofit_workers.workload.workload import Workload


def _model():
    """Makes a model with 64 MiB of feature maps a sample."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)
    )


def _images(batch_size, device):
    return torch.randn(batch_size, 3, 1024, 1024, device=device)


def _mean(model, images):
    return model(images).mean()


small = Workload(build_model=_model, make_batch=_images, loss=_mean, optimizer="adam", name="small")


def _sample_by_sample(model, images):
    return torch.stack([model(image[None]).mean() for image in images]).mean()


loops = Workload(build_model=_model, make_batch=_images, loss=_sample_by_sample)


def _pairs(model, images):
    if len(images) < 2:
        raise ValueError("a pair needs two samples")
    return model(images).mean()


contrastive = Workload(build_model=_model, make_batch=_images, loss=_pairs)


def _positives(model, images):
    output = model(images)
    return output[output > 0].mean()


picks_by_value = Workload(build_model=_model, make_batch=_images, loss=_positives)


@torch.library.custom_op("tiny::kernel", mutates_args=())
def _kernel(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is not torch.Tensor:
        raise RuntimeError("a compiled extension wants memory")
    return tensor.clone()


_kernel.register_autograd(lambda _ctx, grad: grad)


def _with_own_kernel(model, images):
    return _kernel(model(images)).mean()


without_shapes = Workload(build_model=_model, make_batch=_images, loss=_with_own_kernel)


def _broken(model, images):
    raise LookupError("no such layer")


broken = Workload(build_model=_model, make_batch=_images, loss=_broken)


class Classifier(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 64 * 64, 1024), nn.Linear(1024, 10))


def _vectors(batch_size, device):
    return torch.randn(batch_size, 1024, device=device)


def _positive_outputs(model, vectors):
    output = model(vectors)
    return output[output > -1e9].mean()


def _linear():
    return nn.Linear(1024, 64)


def _deadly_when_traced(model, vectors):
    if isinstance(vectors, FakeTensor):
        os.kill(os.getpid(), signal.SIGKILL)
    return model(vectors).mean()


# Small enough to be run on the CPU.
without_shapes_small = Workload(build_model=_linear, make_batch=_vectors, loss=_with_own_kernel)
deadly_when_traced = Workload(build_model=_linear, make_batch=_vectors, loss=_deadly_when_traced)
linear = Workload(build_model=_linear, make_batch=_vectors, loss=_mean, optimizer="adam", name="linear")
loops_small = Workload(build_model=_linear, make_batch=_vectors, loss=_sample_by_sample)


def _in_portions(model, optimizer, vectors):
    """Steps by portions of 16 samples: the events of smaller batches do not depend on the size."""
    optimizer.zero_grad()
    for portion in vectors.split(16):
        model(portion).square().mean().backward()
    optimizer.step()


def _positive_inputs(model, vectors):
    return model(vectors).mean() + vectors[vectors > 0].exp().mean()


picks_inputs_by_value = Workload(build_model=_linear, make_batch=_vectors, loss=_positive_inputs)
portions = Workload(build_model=_linear, make_batch=_vectors, loss=_positive_outputs, step=_in_portions)


def _scaled(model, vectors):
    return (vectors * model.weight).square().mean()


def _wide_vectors(batch_size, device):
    return torch.ones(batch_size, 4 << 20, device=device)


def _scale():
    return nn.Linear(4 << 20, 1, bias=False)


# Some 50 MiB a sample, quick to compute.
grows = Workload(build_model=_scale, make_batch=_wide_vectors, loss=_scaled)


def _outside_of_bfloat16(model, images):
    if next(model.parameters()).dtype == torch.bfloat16:
        raise TypeError("this loss is of fp32")
    return model(images).mean()


of_fp32 = Workload(build_model=_model, make_batch=_images, loss=_outside_of_bfloat16, optimizer="adam")


def _half_images(batch_size, device):
    return torch.empty(batch_size, 64, 256, 256, device=device, dtype=torch.float16)


# 4 Mi elements a sample: 512 samples are one more than PyTorch's kernel can index, and 4 GiB.
channel_by_channel = Workload(
    build_model=lambda: nn.Conv2d(64, 64, 3, stride=2, padding=1, groups=64).half(),
    make_batch=_half_images,
    loss=_mean,
    mode="infer",
)
