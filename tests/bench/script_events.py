"""Predicted events of scripts against real runs: `python tests/bench/script_events.py LIST --root FOLDER`.

For each script of a list (see `scripts.py`) what the prediction says that its first two steps allocate and
free on a GPU, against PyTorch's profiler of the same script on the CPU, size by size and in order.

What is not compared, as in the project's own tests of workloads: tensors of fewer than 32 bytes, and the
order of frees, and here of allocations, that come one after another. And what only one of the two has: the
copies of a batch to the GPU, what the data loader makes on the CPU, workspaces of convolutions and of batch
norms. Optimizers run tensor by tensor on both sides and dropout is one operator, as on a GPU; `cuda()` leaves
tensors where they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autofit_workers.spec.pythons import read_toml

sys.path.insert(0, str(Path(__file__).parent))
from scripts import Listed, environment_for, scripts

_NUM_STEPS = 2
_SMALLEST_BYTES = 32
# Operators whose kernels differ between CPU and GPU: what they both allocate and free is left out.
_OWN_KERNELS = (
    "aten::convolution", "aten::convolution_backward", "aten::native_batch_norm",
    "aten::native_batch_norm_backward", "aten::native_dropout", "aten::native_dropout_backward",
)  # fmt: skip
# What marks a place in the profiler's stream: an allocation of a size that nothing else has.
_LOADING, _LOADED, _FORWARD, _ENDED = (123_456_000 + number for number in range(1, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("--root", type=Path, default=Path(os.environ.get("AUTOFIT_BENCH_SCRIPTS", ".")))
    parser.add_argument("--only", nargs="*", default=[], help="names of scripts")
    parser.add_argument("--side", choices=list(_SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    root = options.root.resolve()
    document = read_toml(options.list.read_text())
    named = [each for each in scripts(document) if each.name in options.only]
    if options.side:
        (listed,) = named
        answer = os.dup(1)
        os.dup2(2, 1)  # what the script prints
        sizes = _SIDES[options.side](listed, root)
        os.write(answer, json.dumps(sizes).encode())
        os._exit(0)
    print("| script | events | bytes allocated | |\n|---|---|---|---|")
    for listed in named:
        given = {**document.get("environment", {}), **listed.environment}
        try:
            real, predicted = (sizes_of(listed, root, given, options.list, side) for side in _SIDES)
        except RuntimeError as error:
            print(f"| {listed.name} | | | {error} |", flush=True)
            continue
        print(f"| {listed.name} | {len(real):,} | {sum(each for each in real if each > 0):,} "
              f"| {difference(real, predicted)} |", flush=True)  # fmt: skip


def sizes_of(listed: Listed, root: Path, given: dict[str, str], path: Path, side: str) -> list[int]:
    command = [sys.executable, __file__, str(path.resolve()), f"--root={root}", f"--side={side}"]
    environment = environment_for(root, given) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    if side == "real":
        environment |= {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "--only", listed.name],
        cwd=listed.home(root) / listed.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"no {side} run: {done.stderr.strip().splitlines()[-1]}")
    return list(json.loads(done.stdout))


def difference(real: list[int], predicted: list[int]) -> str:
    """Where two lists of events part, or that they do not."""
    if real == predicted:
        return "equal"
    at = next((n for n, pair in enumerate(zip(real, predicted, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(real), len(predicted)) if at is None else at
    return (
        f"part at event {at:,} of {len(predicted):,} predicted: real {real[at : at + 6]}, "
        f"predicted {predicted[at : at + 6]}"
    )


def canonical(sizes: list[int]) -> list[int]:
    """Consecutive frees by size: their order makes no difference to an allocator, and is not recorded.

    Consecutive allocations too: in which order a kernel makes its outputs depends on the device.
    """
    sizes = [size for size in sizes if abs(size) >= _SMALLEST_BYTES]
    return [size for _, run in itertools.groupby(sizes, lambda size: size < 0) for size in sorted(run)]


def _spec(listed: Listed) -> Any:
    from autofit_workers.spec.protocol import Probe, TrialSpec
    from autofit_workers.spec.workloads.scripts import Script

    ways = {"--batch-arg": "batch_argument", "--batch-env": "batch_variable", "--batch-name": "batch_name"}
    named = dict(each.split("=", 1) for each in listed.batch)
    script = Script(
        path=listed.script,
        arguments=listed.arguments,
        **{ways[option]: value for option, value in named.items()},  # type: ignore[arg-type]
    )
    return TrialSpec(
        workload=script.reference(), batch_size=listed.batch_size or 1, probe=Probe.PREDICT, with_calls=True
    )


def _own(spec: Any, listed: Listed) -> Any:
    """The spec at the script's own batch where the list names none."""
    if listed.batch_size is not None:
        return spec
    call = dataclasses.replace(spec.workload.script, keeps_batch=True)
    return dataclasses.replace(spec, workload=dataclasses.replace(spec.workload, script=call))


def _filled(listed: Listed, root: Path) -> Listed:
    """The entry with the folder of the repositories in its arguments."""
    return dataclasses.replace(listed, arguments=tuple(each.format(root=root) for each in listed.arguments))


def _let_optimizers_loop() -> None:
    """Optimizers of this process loop over their tensors, as they do on the CPU."""
    import torch

    for each in vars(torch.optim).values():
        module: Any = sys.modules[each.__module__] if isinstance(each, type) else None
        if hasattr(module, "_default_to_fused_or_foreach"):
            module._default_to_fused_or_foreach = lambda *_args, **_kwargs: (False, False)


def _as_on_a_gpu() -> None:
    """Lets this process, which has none, take the ways of a script that has one."""
    import torch
    from torch.nn import functional

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        return torch.native_dropout(input, p, training)[0] if training and p else input

    vars(functional)["dropout"] = dropout
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *_args, **_kwargs: self  # type: ignore[method-assign]


def predicted_sizes(listed: Listed, root: Path) -> list[int]:
    from autofit_workers.tracing.fake import fake_gpu
    from autofit_workers.tracing.scripts.tracer import ScriptTracer

    spec = _own(_spec(_filled(listed, root)), listed)
    fake_gpu.install()
    _let_optimizers_loop()
    trace = ScriptTracer(spec, _NUM_STEPS).run(lambda: os._exit(1))
    copies = {
        number
        for call in trace.calls
        if call.operator.startswith("aten._to_copy") and not call.inputs
        for number in call.outputs
    }
    start = next(mark.position for mark in trace.marks if mark.name == "step 1 forward")
    sizes = [0 if n in copies else _bytes_of(each) for n, each in enumerate(trace.allocations)]
    assert trace.seen is not None
    events = trace.events[start : trace.seen.step_ends[_NUM_STEPS - 1]]  # and not what comes after the steps
    return canonical([sizes[event] if event >= 0 else -sizes[~event] for event in events])


def _bytes_of(allocation: Any) -> int:
    """Of an allocation, where a real run on the CPU has it too."""
    scratch = allocation.scratch
    if scratch is None or scratch.formula != "elements" or "convolution" in allocation.operator:
        return int(allocation.num_bytes)
    return math.prod(scratch.dimensions) * int(scratch.element_bytes)


class _Marker:
    """Puts a mark into the profiler's stream at each phase of a step."""

    def __init__(self) -> None:
        self._is_in_step = False

    def mark(self, num_bytes: int) -> None:
        import torch

        torch.empty(num_bytes, dtype=torch.uint8)

    def forward(self, _module: Any) -> None:
        if not self._is_in_step:
            self._is_in_step = True
            self.mark(_FORWARD)

    def ended(self) -> None:
        self.mark(_ENDED)

    def backward(self) -> None: ...

    after_backward = saving = backward

    def stepping(self, _optimizer: Any) -> None: ...

    stepped = counted = stepping

    def wants_more(self, _kind: Any) -> bool:
        return False


def real_sizes(listed: Listed, root: Path) -> list[int]:
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.data import dataloader

    from autofit_workers.scripts.batches.size import Batches
    from autofit_workers.scripts.running import run_script
    from autofit_workers.scripts.watching import StepWatch
    from autofit_workers.workload.libraries.importing import without_missing_operators
    from autofit_workers.workload.step import seed

    spec = _own(_spec(_filled(listed, root)), listed)
    call = spec.workload.script
    batch_size = None if call.keeps_batch else spec.batch_size
    batches = Batches(spec.workload.name, call, batch_size, loads_here=True)
    marker = _Marker()
    watch = StepWatch(batches, _NUM_STEPS, marker, follows_modules=True)
    iterator: Any = dataloader._BaseDataLoaderIter
    seed(spec.seed)
    _as_on_a_gpu()
    _let_optimizers_loop()
    gc.collect()
    with watch.watching(), without_missing_operators():
        advance = iterator.__next__

        def advanced(each: Any) -> Any:
            marker.mark(_LOADING)
            try:
                return advance(each)
            finally:
                marker.mark(_LOADED)

        iterator.__next__ = iterator.next = advanced
        with (
            torch.autograd.set_multithreading_enabled(False),
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        ):
            run_script(spec.workload, spec.batch_size, watch, saves=False, give_up=lambda: os._exit(1))
    assert profiler.profiler is not None
    return canonical(list(_of_steps(_allocations(profiler.profiler.kineto_results))))


def _allocations(results: Any) -> list[tuple[int, int]]:
    """Every allocation and free in order: its address, its bytes, negative of a free."""
    found: list[tuple[int, int, int, int | None]] = []
    pending = [(event, None) for event in results.experimental_event_tree()]
    while pending:
        event, kernel = pending.pop()
        if event.name == "[memory]":
            fields = event.extra_fields
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size, kernel))
        if kernel is None and event.name in _OWN_KERNELS:
            kernel = event.id
        pending += [(child, kernel) for child in event.children]
    found.sort(key=lambda each: each[0])
    return list(_without_workspaces(found))


def _without_workspaces(found: list[tuple[int, int, int, int | None]]) -> Iterator[tuple[int, int]]:
    """Leaves out what one of `_OWN_KERNELS` both allocates and frees."""
    dropped = set()
    begun: dict[tuple[int, int], int] = {}
    for number, (_, address, size, kernel) in enumerate(found):
        if kernel is None:
            continue
        if size > 0:
            begun[kernel, address] = number
        elif (kernel, address) in begun:
            dropped |= {begun.pop((kernel, address)), number}
    for number, (_, address, size, _) in enumerate(found):
        if number not in dropped:
            yield address, size


def _of_steps(allocations: list[tuple[int, int]]) -> Iterator[int]:
    """The sizes between the first forward pass and the last step, without what the loader made."""
    has_begun, is_loading = False, False
    of_loader: set[int] = set()
    for address, size in allocations:
        if size == _ENDED:
            return
        if abs(size) in (_LOADING, _LOADED, _FORWARD):
            has_begun = has_begun or size == _FORWARD
            is_loading = size == _LOADING if size in (_LOADING, _LOADED) else is_loading
        elif size > 0 and is_loading:
            of_loader.add(address)
        elif size < 0 and address in of_loader:
            of_loader.discard(address)
        elif has_begun and not is_loading:
            yield size


_SIDES = {"real": real_sizes, "predicted": predicted_sizes}

if __name__ == "__main__":
    main()
