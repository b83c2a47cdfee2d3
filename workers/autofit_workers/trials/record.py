"""Records ground truth on a machine with a GPU: what trials really needed there.

    python -m autofit_workers.trials.record --out rows.jsonl --minutes 20
    python -m autofit_workers.trials.record --snapshot run.pickle --models gpt2

Every row is one JSON document of schema `autofit.ground-truth/1` with a `kind`: the `device`, its
`context` size, a `trial`, and at last a `prediction` to compare with what was measured. Rows come in order
of value and are written as they are learned, so a run cut short is worth having; started
again with the same file, it goes on where it stopped. A trial that fails is a row too, and the next
one follows. Needs torch alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofit_workers.replay.curve.traced_step import traced_step
from autofit_workers.spec.architecture import of_device
from autofit_workers.spec.errors import DeviceError, MissingLibraryError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import (
    GROUND_TRUTH_SCHEMA,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run

if TYPE_CHECKING:
    from autofit_workers.workload.workload import Workload

_ROW_START = f'{{"schema":"{GROUND_TRUTH_SCHEMA}"'.encode()
EXIT_USAGE, EXIT_NO_DEVICE = 2, 5

# Small, middle and large, chosen so that the large ones need a few GiB.
BATCH_SIZES: dict[str, tuple[int, int, int]] = {
    "davenet": (8, 32, 96),
    "resnet50": (8, 32, 128),
    "vgg16": (8, 32, 96),
    "gpt2": (1, 4, 16),
    "davenet-audio": (8, 64, 256),
    "davenet-image": (8, 32, 128),
    "lstm": (16, 64, 256),
    "wavenet": (1, 4, 12),
}
_WITHOUT_CONVOLUTIONS = ("gpt2", "lstm")
_SMALL, _MIDDLE, _LARGE = range(3)
# Trials of every model, the most informative first: (index of the batch size, knobs).
_ROUNDS: tuple[tuple[int, Knobs], ...] = (
    (_MIDDLE, Knobs()),
    (_LARGE, Knobs()),
    (_MIDDLE, Knobs(precision="amp-bf16")),
    (_MIDDLE, Knobs(conv_algo="cudnn-benchmark")),
    (_MIDDLE, Knobs(conv_algo="native")),
    (_SMALL, Knobs()),
    (_MIDDLE, Knobs(conv_algo="cudnn-deterministic")),
    (_MIDDLE, Knobs(optimizer="adam")),
    (_MIDDLE, Knobs(memory_format="channels_last")),
    (_MIDDLE, Knobs(precision="amp-fp16", memory_format="channels_last")),
    (_MIDDLE, Knobs(precision="bf16")),
    (_MIDDLE, Knobs(precision="ieee-fp32")),
    (_MIDDLE, Knobs(optimizer="adam", optimizer_impl="fused")),
    (_MIDDLE, Knobs(optimizer="adam", optimizer_impl="loop", set_to_none=False)),
    (_LARGE, Knobs(precision="amp-bf16")),
    (_LARGE, Knobs(conv_algo="cudnn-benchmark")),
    (_LARGE, Knobs(conv_algo="cudnn-deterministic")),
    (_MIDDLE, Knobs(precision="amp-bf16", conv_algo="cudnn-benchmark")),
    (_MIDDLE, Knobs(precision="amp-bf16", conv_algo="native")),
    (_LARGE, Knobs(precision="amp-bf16", conv_algo="cudnn-benchmark")),
    (_MIDDLE, Knobs(optimizer="adam", optimizer_in_backward=True)),
    (_MIDDLE, Knobs(optimizer="adafactor", clip_grad_norm=1.0)),
)
COMBINATIONS = tuple(
    Knobs(precision=precision, conv_algo=conv_algo)
    for precision, conv_algo in itertools.product(PRECISIONS, CUDA_POLICIES)
)
# Fields by which an earlier row's trial is recognised.
_IDENTITY = ("workload", "batch_size", "mode", "knobs", "num_warmup_steps", "num_steps")
_TRIAL_SECONDS = 300.0
_SHORTEST_TRIAL_SECONDS = 15.0
_PREDICTION_SHARE = 0.15  # of the time, for predictions to compare with the measurements

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Records measured trials into a file, as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m autofit_workers.trials.record", description=__doc__)
    parser.add_argument("--out", type=Path, help="file of rows; those in it are not repeated")
    parser.add_argument(
        "--snapshot",
        type=Path,
        help="instead of rows, the memory snapshot of one model, with FILE.json beside it",
    )
    parser.add_argument("--batch-size", type=int, help="batch of --snapshot; a middle one by default")
    parser.add_argument("--minutes", type=float, default=20.0, help="when to stop")
    parser.add_argument("--models", default=",".join(BATCH_SIZES), help="built-in workloads, comma-separated")
    options = parser.parse_args(arguments)
    models = options.models.split(",")
    unknown = [model for model in models if model not in BATCH_SIZES]
    if unknown:
        sys.stderr.write(f"unknown model {', '.join(unknown)}: choose from {', '.join(BATCH_SIZES)}\n")
        return EXIT_USAGE
    if (reason := _wrong_call(options, models)) is not None:
        sys.stderr.write(f"{reason}\n")
        return EXIT_USAGE

    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("PyTorch finds no CUDA device here: run this on a machine with an NVIDIA GPU\n")
        return EXIT_NO_DEVICE
    if options.snapshot is not None:
        return _record_snapshot(options.snapshot, models[0], options.batch_size)
    try:
        earlier = rows_in(options.out)
    except ValueError as error:
        sys.stderr.write(f"{options.out} is not a file of rows ({error}): name another with --out\n")
        return EXIT_USAGE
    with options.out.open("a", encoding="utf-8") as file:
        for row in itertools.chain(
            [device_row()], record(models, seconds=60 * options.minutes, earlier=earlier)
        ):
            write_row(file.write, row)
            file.flush()
    return 0


def _wrong_call(options: argparse.Namespace, models: Sequence[str]) -> str | None:
    """Reason why nothing can be recorded with these options; None if there is none."""
    if (options.out is None) == (options.snapshot is None):
        return "name one of --out, for rows, and --snapshot, for a memory snapshot"
    if options.snapshot is not None and len(models) > 1:
        return f"--snapshot is of one model: name it with --models, such as --models {models[0]}"
    if options.batch_size is not None and (options.snapshot is None or options.batch_size < 1):
        return "--batch-size is that of --snapshot, 1 or more"
    return None


def _record_snapshot(path: Path, model: str, batch_size: int | None) -> int:
    """Records the memory snapshot of a model's steps, says what to send, and returns the exit code."""
    from autofit_workers.trials.record_snapshot import on_cuda, record_snapshot

    spec = TrialSpec(
        workload=WorkloadRef(kind="builtin", target=model),
        batch_size=batch_size or BATCH_SIZES[model][_MIDDLE],
        probe=Probe.CUDA,
        knobs=Knobs(),
    )
    try:
        said = record_snapshot(path, spec, _trial_of(spec), device_row(), on_cuda())
    except OSError as error:
        sys.stderr.write(f"cannot write {path} ({error.strerror}): name another file with --snapshot\n")
        return EXIT_USAGE
    sys.stdout.write(said)
    return 0


def rows_in(path: Path) -> list[Row]:
    """Rows of a JSON lines file of recorded trials; an incomplete last line is removed from the file.

    Raises:
        ValueError: the file holds a line that is no row.
    """
    if not path.exists():
        return []
    whole, _, rest = path.read_bytes().rpartition(b"\n")
    rows: list[Row] = [json.loads(line) for line in whole.splitlines()]
    is_other = any(row.get("schema") != GROUND_TRUTH_SCHEMA for row in rows)
    if is_other or not rest.startswith(_ROW_START[: len(rest)]):
        raise ValueError(f"not every row is of schema {GROUND_TRUTH_SCHEMA}")
    if rest:
        os.truncate(path, path.stat().st_size - len(rest))
    return rows


def write_row(write: Callable[[str], object], row: Row) -> None:
    """Writes a row of recorded measurements as one line of JSON."""
    write(json.dumps({"schema": GROUND_TRUTH_SCHEMA, **row}, separators=(",", ":")) + "\n")


def device_row() -> Row:
    """Row for the file of records with the card's properties; reading them creates no CUDA context."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    cudnn: Any = torch.backends.cudnn  # untyped
    return {
        "kind": "device",
        "name": properties.name,
        "architecture": of_device(properties, torch.version.hip),
        "total_bytes": properties.total_memory,
        "num_multiprocessors": properties.multi_processor_count,
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": cudnn.version(),
            "python": sys.version.split()[0],
        },
    }


def plan(models: Sequence[str]) -> Iterator[TrialSpec]:
    """Yields the specs of all trials to record, the most informative first.

    Every model comes once before any model comes twice. Last come the remaining combinations of precision and
    convolution algorithm.

    Args:
        models: names of built-in workloads.
    """
    rounds = dict.fromkeys((*_ROUNDS, *((_MIDDLE, knobs) for knobs in COMBINATIONS)))
    for size, knobs in rounds:
        for model in models:
            if applies(model, knobs):
                yield TrialSpec(
                    workload=WorkloadRef(kind="builtin", target=model),
                    batch_size=BATCH_SIZES[model][size],
                    probe=Probe.CUDA,
                    knobs=knobs,
                )


def applies(model: str, knobs: Knobs) -> bool:
    """Whether training options have an effect on a model.

    Convolution algorithms other than `cudnn` have none on a model without convolutions.
    """
    return knobs.conv_algo == "cudnn" or model not in _WITHOUT_CONVOLUTIONS


def record(
    models: Sequence[str],
    *,
    seconds: float,
    earlier: Sequence[Row] = (),
    run: Callable[[TrialSpec], TrialOutcome] = run,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """Runs the planned trials for some time, and yields a row for each measurement and each prediction.

    Sizes that fit are also predicted at the end.

    Args:
        models: names of built-in workloads.
        seconds: seconds after which to stop.
        earlier: rows of an earlier run on this machine; trials that ended conclusively in them are not run
            again.
        run: runs a trial.
        clock: returns the time in seconds.
    """
    end = clock() + seconds
    end_of_trials = end - _PREDICTION_SHARE * seconds
    context = TrialSpec(
        workload=WorkloadRef(kind="import", target="autofit_workers.trials.record:almost_nothing"),
        batch_size=1,
        probe=Probe.CUDA,
    )
    yield {**trial_row(context, run(context)), "kind": "context"}
    settled = {_key(row) for row in earlier if row["kind"] == "trial" and _is_settled(row)}
    measured: list[tuple[TrialSpec, TrialOutcome]] = []
    for spec in plan(models):
        if _key(_trial_of(spec)) in settled:
            continue
        remaining = end_of_trials - clock()
        if remaining < _SHORTEST_TRIAL_SECONDS:
            break
        outcome = run(dataclasses.replace(spec, deadline_seconds=min(_TRIAL_SECONDS, remaining)))
        yield trial_row(spec, outcome)
        if outcome.verdict is Verdict.FITS:
            measured.append((spec, outcome))
    for spec, outcome in measured:
        remaining = end - clock()
        if remaining <= 0:
            break
        yield _prediction(spec, outcome, run, remaining)


def almost_nothing() -> Workload:
    """Tiny workload whose device memory outside the allocator is little more than the CUDA context."""
    import torch

    from autofit_workers.workload.workload import Workload

    return Workload(
        build_model=lambda: torch.nn.Linear(8, 8),
        make_batch=lambda batch_size, device: torch.zeros(batch_size, 8, device=device),
        loss=lambda model, batch: model(batch).sum(),
        optimizer="sgd",
    )


def _is_settled(row: Row) -> bool:
    """Whether the trial of a row need not be repeated.

    It has to be, if its process was lost, timed out, or lacked a device or a library.
    """
    if row["verdict"] in (Verdict.LOST, Verdict.TIMEOUT):
        return False
    return row["error"] is None or row["error"]["kind"] not in (DeviceError.kind, MissingLibraryError.kind)


def _key(row: Row) -> str:
    return json.dumps([row[name] for name in _IDENTITY], sort_keys=True)


def trial_row(spec: TrialSpec, outcome: TrialOutcome) -> Row:
    """Row for the file of records with a trial's outcome, and with its spec, which can repeat the trial."""
    told = dataclasses.asdict(outcome)
    for bulky in ("trace_json", "knobs", "batch_size"):
        del told[bulky]
    return {"kind": "trial", **_trial_of(spec), **told, "samples_per_second": outcome.samples_per_second}


def _trial_of(spec: TrialSpec) -> Row:
    return {
        "workload": spec.workload.name,
        "batch_size": spec.batch_size,
        "mode": spec.setup.mode,
        "knobs": spec.knobs.to_dict(),
        "num_warmup_steps": spec.num_warmup_steps,
        "num_steps": spec.num_steps,
    }


def _prediction(
    spec: TrialSpec, measured: TrialOutcome, run: Callable[[TrialSpec], TrialOutcome], seconds: float
) -> Row:
    """Row for the file of records with the prediction of a measured trial."""
    architecture = measured.environment.get("architecture", spec.architecture)
    predicted = run(
        dataclasses.replace(spec, probe=Probe.PREDICT, architecture=architecture, deadline_seconds=seconds)
    )
    verdict, peaks = predicted.verdict, Peaks()
    if predicted.trace_json is not None:
        step = traced_step(Trace.from_json(predicted.trace_json), architecture)
        replay = step.likely().replay
        verdict = step.verdict(spec.budget_bytes)
        peaks = Peaks(allocated_bytes=replay.peak_allocated_bytes, reserved_bytes=replay.peak_reserved_bytes)
    return {
        "kind": "prediction",
        "workload": spec.workload.name,
        "batch_size": spec.batch_size,
        "knobs": spec.knobs.to_dict(),
        "verdict": verdict,
        "first_step": _side_by_side(peaks, measured.first_step),
        "steady": _side_by_side(peaks, measured.steady),
        "error": None if predicted.error is None else dataclasses.asdict(predicted.error),
    }


def _side_by_side(predicted: Peaks, measured: Peaks) -> Row:
    return {"predicted": dataclasses.asdict(predicted), "measured": dataclasses.asdict(measured)}


if __name__ == "__main__":
    sys.exit(main())
