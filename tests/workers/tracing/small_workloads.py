"""Small workloads, each of one construct that a fake GPU has to get right; a child traces them.

With a batch of 4 and the sizes below no two tensors that a test tells apart are equally large.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autofit_workers.spec.pythons import Self
from autofit_workers.workload.workload import Workload

WIDTH = 16
HIDDEN = 48


def _rows(batch_size: int, device: torch.device, *, shape: tuple[int, ...] = (WIDTH,)) -> Tensor:
    return torch.randn(batch_size, *shape, device=device)


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.square().mean()


def _workload(
    build_model: Callable[[], nn.Module], *, shape: tuple[int, ...] = (WIDTH,), **fields: Any
) -> Workload:
    make_batch = functools.partial(_rows, shape=shape)
    return Workload(build_model=build_model, **{"make_batch": make_batch, "loss": _mean_square, **fields})


class Apply(nn.Module):
    """A linear layer, and a function of its output and itself."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x))


def _applying(function: Callable[[nn.Module, Tensor], Tensor], **options: Any) -> Workload:
    return _workload(functools.partial(Apply, function), **options)


class LibraryWeight(nn.Parameter):
    """A class of parameters as libraries of quantized layers have them."""

    def __new__(cls, data: Tensor) -> Self:
        made: Self = Tensor._make_subclass(cls, data, True)
        return made


class OtherWeight(nn.Parameter):
    """A second class of parameters of a library."""


class OfLibrary(nn.Linear):
    """A linear layer that raises unless its weight is of its library's class."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HIDDEN, bias=False)
        self.weight = LibraryWeight(self.weight.data)
        if not isinstance(self.weight, LibraryWeight) or isinstance(self.weight, OtherWeight):
            raise TypeError(f"weights are {type(self.weight)}")


def _perceptron(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), activation(), nn.Linear(HIDDEN, 2))


perceptron = _workload(_perceptron)
foreach_adam = _workload(_perceptron, optimizer=functools.partial(torch.optim.Adam, foreach=True))

# A weight of 64 × 100, which is large for an optimizer with states of 8 bits, and small parameters.
wide = _workload(lambda: nn.Linear(64, 100), shape=(64,))

# A weight of 400 × 300, large enough to be paged, and a hidden layer between embedding and output.
paged = _workload(lambda: nn.Linear(400, 300), shape=(400,))
embedding_and_layers = _workload(
    lambda: nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 10)),
    make_batch=lambda batch_size, device: torch.randint(10, (batch_size, 3), device=device),
)

# Operators with a composite fallback.
past_the_model = _workload(_perceptron, loss=lambda m, b: functional.linear(b, next(m.parameters())).mean())
silu = _workload(functools.partial(_perceptron, nn.SiLU))
mish = _workload(functools.partial(_perceptron, nn.Mish))
rms_norm = _workload(lambda: nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.RMSNorm(HIDDEN)))
dropout = _workload(lambda: nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Dropout(0.1), nn.Linear(HIDDEN, 2)))
softmax = _workload(lambda: nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Softmax(-1)))
log_softmax = _workload(lambda: nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.LogSoftmax(-1)))
sequence = _workload(lambda: nn.Linear(WIDTH, HIDDEN), shape=(5, WIDTH))
strided_sequence = _workload(
    lambda: nn.Linear(WIDTH, HIDDEN),
    shape=(WIDTH, 5),
    loss=lambda model, batch: _mean_square(model, batch.transpose(1, 2)),
)

binary_labels = _workload(
    lambda: nn.Linear(WIDTH, HIDDEN),
    loss=lambda model, batch: functional.binary_cross_entropy_with_logits(
        model(batch), batch.new_ones(len(batch), HIDDEN)
    ),
)


# Attention.
class Attention(nn.Module):
    """Heads that attend to themselves, batch × heads × sequence × head size."""

    def __init__(self, head_size: int = 8, *, masked: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(head_size, head_size, bias=False)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x)
        length = x.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril() if self.masked else None
        return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


attention = _workload(Attention, shape=(2, 6, 8))
masked_attention = _workload(functools.partial(Attention, masked=True), shape=(2, 6, 8))
odd_attention = _workload(functools.partial(Attention, head_size=7), shape=(2, 6, 7))
unbatched_attention = _workload(Attention, shape=(6, 8))


# Samples of any size.
class Texts(nn.Module):
    """Words that attend to each other, with the scores of all words for each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.attention = Attention(masked=True)
        self.head = nn.Linear(8, 50)

    def forward(self, words: Tensor) -> Tensor:
        output: Tensor = self.head(self.attention(self.words(words)[:, None]))
        return output


class Patches(nn.Module):
    """Patches of an image with a learned position each, which attend to each other."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.positions = nn.Parameter(torch.zeros((side // 4) ** 2 + 1, 8))
        self.attention = Attention()

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.positions[:1].expand(len(images), 1, 8)
        output: Tensor = self.attention(torch.cat([first, patches], dim=1) + self.positions)
        return output


def _words(batch_size: int, device: torch.device, *, size: int = 16) -> Tensor:
    return torch.randint(50, (batch_size, size), device=device)


def _images(batch_size: int, device: torch.device, *, size: int = 32) -> Tensor:
    return torch.randn(batch_size, 3, size, size, device=device)


texts = Workload(
    build_model=Texts, make_batch=_words, loss=_mean_square, optimizer="adam", max_size=512, size_multiple=32
)
patches = Workload(
    build_model=lambda size=32: Patches(size), make_batch=_images, loss=_mean_square, size_multiple=32
)
by_parts = Workload(  # an allocation more from 100 on
    build_model=Texts,
    make_batch=_words,
    loss=lambda model, batch: sum(_mean_square(model, part) for part in batch.split(100, dim=1)),
    size_multiple=32,
)


class ChosenAttention(Attention):
    """Attention that chooses PyTorch's kernel itself."""

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return super().forward(heads)


chosen_attention = _workload(ChosenAttention, shape=(2, 6, 8))


# Convolutions.
def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3, stride=2),
        nn.Flatten(),
        nn.Linear(24, 2),
    )


class Inferring(nn.Module):
    """A model that turns on inference mode itself, as Lightning does in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _convolutional()

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x).softmax(-1)
        return output


class WithoutGradients(Inferring):
    forward = torch.no_grad()(Inferring.forward.__wrapped__)  # type: ignore[attr-defined]


convolutional = _workload(_convolutional, shape=(3, 10, 12))
inferring = _workload(Inferring, shape=(3, 10, 12))
without_gradients = _workload(WithoutGradients, shape=(3, 10, 12))
transposed = _workload(
    lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 5, 4, stride=2)), shape=(3, 8, 9)
)
one_channel = _workload(lambda: nn.Conv2d(1, 3, 3), shape=(1, 8, 9))
volumes = _workload(
    lambda: nn.Sequential(nn.Conv3d(3, 5, 3), nn.ReLU(), nn.Conv3d(5, 2, 3)), shape=(3, 6, 7, 8)
)
double_images = _workload(
    lambda: nn.Conv2d(3, 5, 3).double(), shape=(3, 8, 9), loss=lambda m, b: _mean_square(m, b.double())
)


# Sums of gradients.
class OwnExponential(torch.autograd.Function):
    """An exponential whose backward adds two temporaries, in Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.exp() + grad * 2


class Checkpointed(nn.Module):
    """A model that adds twice within a checkpoint, which is run again in backward."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(self.inside, self.first(x), use_reentrant=self.use_reentrant)
        return output

    def inside(self, x: Tensor) -> Tensor:
        output: Tensor = functional.gelu(self.second(x) + x + 1) + x
        return output


residual = _applying(lambda self, x: x + functional.relu(self.layer(x)))
squared = _applying(lambda _, x: x * x)
picked = _applying(
    lambda _, x: x.gather(1, torch.zeros(4, 16, dtype=torch.int64, device=x.device)) + x.sort(dim=1).values
)
gathered = _applying(lambda _, x: x[:, :4] + x[:, 4:8] + x[:, 8:12])
formula = _applying(lambda _, x: functional.cosine_similarity(x, x.exp(), dim=1))
# A multiple of what is applied, so that its gradient goes on.
mean_squared_loss = _applying(lambda _, x: x * functional.mse_loss(x, torch.zeros_like(x)))
smooth_loss = _applying(lambda _, x: x * functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="sum"))
huber_loss = _applying(lambda _, x: x * functional.huber_loss(x, torch.zeros_like(x)))
margin_loss = _applying(lambda _, x: x * functional.soft_margin_loss(x, torch.ones_like(x)))
cross_entropy_of_shares = _applying(
    lambda _, x: x * functional.binary_cross_entropy(x.sigmoid(), torch.ones_like(x))
)
chunked_cross_entropy = _applying(
    lambda self, x: (
        x
        * functional.linear_cross_entropy(
            x,
            self.layer.weight,
            torch.arange(len(x), device=x.device),
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=3, chunking_method=None),
        )
    )
)
losses_of_elements = _applying(
    lambda _, x: (
        functional.mse_loss(x, torch.zeros_like(x), reduction="none")
        + functional.binary_cross_entropy(x.sigmoid(), torch.ones_like(x), reduction="none")
    )
)
own_function = _applying(lambda _, x: OwnExponential.apply(x))
checkpointed = _workload(functools.partial(Checkpointed, use_reentrant=False))


def _blocks() -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(3))
    )


def _mean_square_of_tuned(model: nn.Module, batch: Tensor) -> Tensor:
    """Loss of a program that sets Inductor's own configuration, not options of `torch.compile`."""
    config: Any = importlib.import_module("torch._inductor.config")
    with config.patch(max_autotune=True):
        return _mean_square(model, batch)


class KeptOut(nn.Module):
    """A layer whose second half is switched off by the number 0, as experiments leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.first(batch) + 0 * self.second(batch)
        return output


kept_out = _workload(KeptOut)
blocks = _workload(_blocks)
tuned_blocks = _workload(_blocks, loss=_mean_square_of_tuned)
blocks_after_a_layer = _workload(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), _blocks()))
reentrant = _workload(functools.partial(Checkpointed, use_reentrant=True))


def _accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    optimizer.zero_grad()
    for part in batch.split(2):
        _mean_square(model, part).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


accumulating = _workload(_perceptron, step=_accumulating)


class Averaged(nn.Module):
    """A model and the moving average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = _perceptron()
        self.average = _perceptron().requires_grad_(False)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = (self.trained if self.training else self.average)(batch)
        return output


def _averaging(model: Averaged, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    optimizer.zero_grad()
    _mean_square(model, batch).backward()
    optimizer.step()
    with torch.no_grad():
        for average, weight in zip(model.average.parameters(), model.trained.parameters(), strict=True):
            average.mul_(0.99).add_(weight * 0.01)


averaged = _workload(Averaged, step=_averaging, optimizer=functools.partial(torch.optim.Adam, foreach=False))


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = _perceptron()
        self.discriminator = nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 1))


def _both(model: Adversaries) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    return (
        torch.optim.Adam(model.generator.parameters(), foreach=False),
        torch.optim.RMSprop(model.discriminator.parameters(), foreach=False),
    )


def _alternating(
    model: Adversaries, optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer], batch: Tensor
) -> None:
    of_generator, of_discriminator = optimizers
    made = model.generator(batch)
    of_discriminator.zero_grad()
    told = model.discriminator(made.detach()) - model.discriminator(batch[:, :2])
    functional.softplus(told).mean().backward()
    of_discriminator.step()
    of_generator.zero_grad()
    functional.softplus(-model.discriminator(made)).mean().backward()
    of_generator.step()


adversarial = _workload(Adversaries, step=_alternating, optimizer=_both)


def _stepping(
    backward: Callable[[Tensor], object], model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor
) -> None:
    optimizer.zero_grad()
    backward(_mean_square(model, batch))
    optimizer.step()


def _by_the_engine(loss: Tensor) -> None:
    engine: Any = torch.autograd.Variable._execution_engine
    gradients = (torch.ones_like(loss),)
    engine.run_backward((loss,), gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


of_tensor = _workload(_perceptron, step=functools.partial(_stepping, Tensor.backward))
of_engine = _workload(_perceptron, step=functools.partial(_stepping, _by_the_engine))


def _scaling(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    scaler.scale(_mean_square(model, batch)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


scaled_by_itself = _workload(_perceptron, step=_scaling)


# Modules.
class Language(nn.Module):
    """A model with tied weights, a buffer, and a buffer that no state dict keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH, padding_idx=0)
        self.head = nn.Linear(WIDTH, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(5 * WIDTH).view(5, WIDTH).float())
        self.register_buffer("scale", torch.full((70,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.embedding(x.long()) + self.positions)
        return output * self.scale[0]


def _frozen_perceptron() -> nn.Module:
    model = _perceptron()
    model[0].requires_grad_(requires_grad=False)
    return model


def _loaded_perceptron() -> nn.Module:
    model = _perceptron()
    model.load_state_dict({name: torch.zeros(value.shape) for name, value in model.state_dict().items()})
    return model


def _truncated_normal() -> nn.Module:
    model = _perceptron()
    for parameter in model.parameters():
        nn.init.trunc_normal_(parameter, std=0.02)
        nn.init.trunc_normal_(parameter, std=10.0)  # the two ways that it draws
    return model


def _asking_the_compiler() -> nn.Module:
    """Makes a model after a call of `torch.compiler`, as importing `transformers` does."""
    torch.compiler.allow_in_graph(_asking_the_compiler)
    return _perceptron()


def _lazy() -> nn.Module:
    model = nn.LazyLinear(3)
    model(torch.zeros(1, WIDTH))
    return model


def _on_meta() -> nn.Module:
    with torch.device("meta"):
        return _perceptron()


def _computing() -> nn.Module:
    """Makes a model from values of tensors, as drop-path rates and RegNet widths are made."""
    widths = [int(width.item()) for width in torch.linspace(WIDTH, 32, 3)]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


of_library = _workload(OfLibrary)
language = _workload(
    Language, shape=(5,), loss=lambda model, batch: _mean_square(model, batch.abs().clamp(max=99))
)
frozen = _workload(_frozen_perceptron, optimizer=functools.partial(torch.optim.Adam, foreach=True))
loaded = _workload(_loaded_perceptron)
lazy = _workload(_lazy)
on_meta = _workload(_on_meta)
computing = _workload(_computing)
truncated_normal = _workload(_truncated_normal)
asking_the_compiler = _workload(_asking_the_compiler)
half = _workload(lambda: _perceptron().to(torch.bfloat16), loss=lambda m, b: _mean_square(m, b.bfloat16()))
on_cuda = _workload(lambda: _perceptron().cuda())
compiled = _workload(lambda: torch.compile(_perceptron()))
weight_norm = _workload(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, HIDDEN)))
giant = _workload(
    lambda: nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(15))), shape=(16384,)
)


# Ways of naming the GPU.
class NamesTheGpu(nn.Module):
    """A model that puts 70 elements on the GPU in every way there is; each allocates 280 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(70, 70)

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(70)
        values = [1.0] * 70
        x = self.layer(x)
        assert x.is_cuda
        assert x.device == torch.device("cuda", 0)
        assert x.type() == "torch.cuda.FloatTensor"
        came: Any = torch.zeros(4)
        came.own = "kept"
        came.data = x.detach()
        assert came.is_cuda
        assert came.own == "kept"
        named = [
            torch.ones(70, device="cuda"),
            torch.ones(70, device=torch.device("cuda")),
            torch.ones(70, device=torch.cuda.current_device()),
            torch.tensor(values, device="cuda"),
            torch.tensor(values).cuda(),
            ones.to("cuda"),
            ones.to(0),
            ones.to("cuda:0", non_blocking=True),
            ones.pin_memory().to(device="cuda"),
            ones.to(x),
            ones.cuda(non_blocking=True),
            x.new_tensor(values),
            x.new_ones(70),
            torch.ones_like(x[0]),
        ]
        return x + sum(named)


def _without_copies(_: nn.Module, x: Tensor) -> Tensor:
    """Converts a tensor in ways that all return the same tensor."""
    x = x.to("cuda").to(torch.float32).cuda().float().to(x.device, x.dtype).to(x).type(torch.float32)
    return x.contiguous().to(device="cuda", dtype=torch.float32, non_blocking=True)


names_the_gpu = _workload(NamesTheGpu, shape=(70,))
without_copies = _applying(_without_copies)
indexing = _applying(lambda _, x: x[:, [0, 3, 5]])


# Steps that need values.
nonzero = _applying(lambda _, x: x.nonzero().float() * x.mean())
boolean_index = _applying(lambda _, x: x[x > 0])
different = _applying(lambda _, x: x.detach().unique(return_counts=True)[1] * x.mean())
different_rows = _applying(lambda _, x: x.detach().unique(dim=0) * x.mean())
different_neighbours = _applying(lambda _, x: x.detach().unique_consecutive() * x.mean())
known_rows = _applying(lambda _, x: torch.arange(6).remainder(3).to(x.device).unique(dim=0) * x.mean())


def _large_known_masks(_: nn.Module, x: Tensor) -> Tensor:
    """Indexes by masks of 2048 × 2048, each known by other means; names say how many a row selects."""
    n, device = 2048, x.device
    unknown = x.mean() * torch.ones(n, n, device=device)
    group = torch.arange(n).to(device) // 8
    alike = (group[None] == group[:, None]).float()
    seven = alike.bool() & ~torch.eye(n, dtype=torch.bool).to(device)
    one = torch.ones_like(unknown, dtype=torch.bool).tril().triu()
    eight = nn.functional.one_hot(group, 256).float()
    labels = alike[~one].view(n, -1)
    rows, columns = torch.where(labels[:, :7] >= 0)
    return torch.cat(
        [
            unknown[seven].view(n, 7),
            unknown.masked_select(one).view(n, 1),
            unknown[eight @ eight.T > 0].view(n, 8),
            unknown[~one].view(n, -1)[labels.bool()].view(n, 7),
            unknown[rows, columns].view(n, 7),
        ],
        dim=1,
    )


large_known_masks = _applying(_large_known_masks)


def _beyond_this_machine(_: nn.Module, x: Tensor) -> Tensor:
    """Fills more bytes with one number than the host has."""
    filled = torch.empty(2**44, dtype=torch.uint8, device=x.device).zero_()
    return x * torch.zeros_like(filled)[0] * torch.full_like(filled, 2)[0]


beyond_this_machine = _applying(_beyond_this_machine)
different_alone = _applying(lambda _, x: (x.detach() > 0).unique() * x.mean())
item = _applying(lambda _, x: x * x.sum().item())
several_items = _applying(lambda _, x: x * torch.tensor([x.sum(), x.mean()], device=x.device).mean())
to_numpy = _applying(lambda _, x: x * float(x.detach().cpu().numpy().sum()))


def _asserting(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x.sum() == 0)
    return x


asserted = _applying(_asserting)


def _spelling(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """CTC loss of four samples of 16 steps and 8 letters; the longest target has 3."""
    lengths, targets = torch.tensor([3, 2, 1, 2]), torch.ones(8, dtype=torch.int64)
    steps = x.reshape(-1, 4, 1).expand(-1, -1, 8).log_softmax(-1)
    all_steps = torch.full((4,), len(steps))
    placed = (each.to(x.device) for each in (targets, all_steps, lengths))
    with torch.backends.cudnn.flags(enabled=False):
        return x * functional.ctc_loss(steps, *placed)


spelled = _applying(_spelling)


class _Kept:
    noise = torch.ones(12_345)


def _with_kept(model: nn.Module, batch: Tensor) -> Tensor:
    _Kept.noise = _Kept.noise.to(batch.device)
    return model(batch).mean() * _Kept.noise.mean()


def _fails_one_way(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).mean()
    if loss > 0:
        raise ValueError("the loss has to be negative")
    return loss


keeps_a_tensor_on_the_device = dataclasses.replace(perceptron, loss=_with_kept)
fails_one_way = dataclasses.replace(perceptron, loss=_fails_one_way)


def _batch_with_values(batch_size: int, device: torch.device) -> Tensor:
    rows = torch.randn(batch_size, WIDTH, device=device)
    return rows / max(1.0, rows.abs().max().item())


reads_values_in_its_batch = dataclasses.replace(perceptron, make_batch=_batch_with_values)


# Recurrent networks: 5 steps of 8 features, 6 units.
def _recurrent(build_model: Callable[[], nn.Module], *, steps_first: bool = True) -> Workload:
    def make_batch(batch_size: int, device: torch.device) -> Tensor:
        return torch.randn(*((5, batch_size) if steps_first else (batch_size, 5)), 8, device=device)

    return Workload(
        build_model=build_model, make_batch=make_batch, loss=lambda model, batch: model(batch)[0].mean()
    )


def _packed(model: nn.Module, batch: Tensor) -> Tensor:
    lengths = torch.full((batch.shape[1],), 5)
    output: Tensor = model(nn.utils.rnn.pack_padded_sequence(batch, lengths))[0].data
    return output.mean()


class FlattensInEveryStep(nn.Module):
    """A GRU that flattens its parameters in every step, as models copied to several GPUs do."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.GRU(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.network.flatten_parameters()
        result: tuple[Tensor, Tensor] = self.network(x)
        return result


lstm = _recurrent(lambda: nn.LSTM(8, 6))
gru = _recurrent(lambda: nn.GRU(8, 6))
rnn_tanh = _recurrent(lambda: nn.RNN(8, 6))
rnn_relu = _recurrent(lambda: nn.RNN(8, 6, nonlinearity="relu", bias=False))
batch_first = _recurrent(lambda: nn.LSTM(8, 6, batch_first=True), steps_first=False)
deep_lstm = _recurrent(lambda: nn.LSTM(8, 6, num_layers=3, dropout=0.5, bidirectional=True))
projected = _recurrent(lambda: nn.LSTM(8, 6, proj_size=3, num_layers=2))
unbatched = Workload(
    build_model=lambda: nn.LSTM(8, 6),
    make_batch=lambda batch_size, device: torch.randn(batch_size, 8, device=device),
    loss=lambda model, batch: model(batch)[0].mean(),
)
flattens_in_every_step = _recurrent(FlattensInEveryStep)
packed = _recurrent(lambda: nn.LSTM(8, 6))
packed = dataclasses.replace(packed, loss=_packed)


# Losses and steps that depend on the batch in their own ways.
def _all_pairs(model: nn.Module, batch: Tensor) -> Tensor:
    rows: Tensor = model(batch)
    return (rows @ rows.t()).logsumexp(dim=1).mean()


def _sample_by_sample(model: nn.Module, batch: Tensor) -> Tensor:
    return torch.stack([model(sample).square().mean() for sample in batch]).sum()


all_pairs = _workload(_perceptron, loss=_all_pairs)
sample_by_sample = _workload(_perceptron, loss=_sample_by_sample)


def _once_more_from_64_on(model: nn.Module, batch: Tensor) -> Tensor:
    loss = _mean_square(model, batch)
    return loss + _mean_square(model, batch + 1) if len(batch) >= 64 else loss


branching_at_64 = _workload(_perceptron, loss=_once_more_from_64_on)


def _padded() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1))


def _enlarged() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Upsample(scale_factor=2.0, mode="bilinear"))


padded = _workload(_padded, shape=(3, 12, 12))
enlarged = _workload(_enlarged, shape=(3, 12, 12))


def _loss_on_streams(model: nn.Module, batch: Tensor) -> Tensor:
    """Returns a loss whose batch is prepared on another stream, as by a prefetcher, and reads it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        batch = batch * 2
    torch.cuda.current_stream().wait_stream(side)
    batch.record_stream(torch.cuda.current_stream())
    loss: Tensor = model(batch).square().mean()
    loss.item()
    return loss


on_streams = Workload(
    build_model=lambda: nn.Linear(64, 64),
    make_batch=lambda batch_size, device: torch.randn(batch_size, 64, device=device),
    loss=_loss_on_streams,
    optimizer="sgd",
)
