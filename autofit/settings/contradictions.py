"""Checks of the settings of `autofit tune` for options that contradict each other."""

from __future__ import annotations

from autofit.dispatch.requests import RAY
from autofit.errors import UsageError
from autofit.settings.goals import Batching, Maximized
from autofit.settings.options import DeclaredSettings
from autofit_workers.spec.knobs import Knobs


def require_consistent(settings: DeclaredSettings) -> None:
    """Checks that no two settings contradict each other.

    Raises:
        UsageError: two do; the message names the options as they are typed.
    """
    of_script = (
        settings.script_arguments,
        settings.batch_argument,
        settings.batch_variable,
        settings.batch_name,
    )
    if settings.script is None and (any(of_script) or settings.keeps_trackers):
        raise UsageError(
            "--script-arg, --batch-arg, --batch-env, --batch-name and --keep-trackers need a script: "
            "name it with --script"
        )
    if settings.gpu is not None and settings.gpu_mem_bytes is not None:
        raise UsageError(
            "--gpu and --gpu-mem cannot be combined: a card's name includes its memory; give one of them"
        )
    _require_sizes(settings)
    _require_ranks(settings)
    if settings.device != "cpu":
        return
    if settings.knobs.allocator != Knobs().allocator or "allocator" in dict(settings.searched):
        raise UsageError(
            "--allocator and --search allocator=… set PyTorch's CUDA allocator and cannot be combined "
            "with --device cpu: drop one of them"
        )
    if settings.gpu is not None:
        raise UsageError(
            "--gpu cannot be combined with --device cpu: give --gpu-mem, the memory for the process"
        )
    if settings.gpu_mem_bytes is None:
        raise UsageError(
            "--device cpu needs a limit: give the memory that the process may use, such as --gpu-mem 4G"
        )
    if settings.probe == "predict":
        raise UsageError(
            "--probe predict predicts memory of GPUs and cannot be combined with --device cpu: drop one, or "
            "use --probe measure"
        )


def _require_ranks(settings: DeclaredSettings) -> None:
    """Checks options on ranks (processes that train together) and on where they run.

    Raises:
        UsageError: two of them contradict each other.
    """
    if settings.script is None and settings.launcher is not None:
        raise UsageError(
            "--launcher starts a script: name it with --script, or say the ranks of a model with "
            "--parallel, as in fsdp:8"
        )
    if settings.script is None and settings.num_processes is not None and not settings.parallels:
        raise UsageError(
            "--nproc counts the ranks of a script, or of --search parallel=…: add --script or that search; "
            "the ranks of a model can be said with --parallel, as in fsdp:8"
        )
    if settings.script is not None and settings.parallels:
        raise UsageError(
            "--search parallel=… spreads a model over GPUs, but a script decides that itself: drop one of "
            "the two"
        )
    if settings.setup.rank and settings.parallels:
        raise UsageError(
            "--rank names a rank of one --parallel, and --search parallel=… compares several: drop --rank"
        )
    if settings.script is None and settings.setup.rank and not settings.setup.parallel:
        raise UsageError(
            f"--rank {settings.setup.rank} needs ranks to be one of: name them with --parallel, as in fsdp:8"
        )
    if settings.setup.rank != 0 and (wants := asks_to_measure(settings)):
        raise UsageError(
            f"--rank names the rank that is predicted and cannot be combined with {wants}, which runs "
            "all of them: drop one of the two"
        )
    if settings.setup.torch is not None and (wants := asks_to_measure(settings)):
        raise UsageError(
            f"--torch {settings.setup.torch} predicts a release of PyTorch, and {wants} measures with the "
            "installed one: drop one of the two"
        )
    if not settings.setup.parallel.can_be_measured and (wants := asks_to_measure(settings)):
        raise UsageError(
            f"--parallel {settings.setup.parallel} is predicted and not measured, and {wants} measures: drop "
            "one of the two"
        )
    if settings.num_ranks_of_script > 1 and (wants := asks_to_measure(settings)):
        raise UsageError(
            f"--nproc and --nnodes predict one rank of a script and cannot be combined with {wants}: "
            "drop one of the two"
        )
    if settings.knobs.global_batch is not None and (settings.setup.parallel or settings.parallels):
        raise UsageError(
            "--global-batch counts the samples of one process and cannot be combined with --parallel or "
            "--search parallel=…: give --grad-accumulation instead"
        )
    if settings.script is None and settings.num_nodes > 1:
        _require_nodes(settings)


def _require_nodes(settings: DeclaredSettings) -> None:
    """Checks that the ranks of a model can be spread over the nodes that `--nnodes` asks for.

    Raises:
        UsageError: they cannot, such as without a Ray cluster.
    """
    if settings.dispatch != RAY:
        raise UsageError(
            f"--nnodes is for a Ray cluster, and --dispatch {settings.dispatch} has one machine: drop one of "
            "the two"
        )
    if not settings.parallels and not settings.setup.parallel:
        raise UsageError(
            "--nnodes spreads ranks over nodes, and there is only one rank: name more with --parallel, "
            "as in fsdp:8"
        )
    for parallel in settings.parallels or (settings.setup.parallel,):
        if parallel.num_ranks % settings.num_nodes:
            raise UsageError(
                f"--nnodes {settings.num_nodes} has the same number of ranks on each node, and {parallel} is "
                f"of {parallel.num_ranks}: give a number of nodes that divides it"
            )
    # If several kinds of parallelism are compared, --nnodes also gives the number of ranks.
    if not settings.parallels and asks_to_measure(settings) is None:
        raise UsageError(
            "--nnodes spreads the ranks of measured trials, and without --probe measure or --device cpu "
            f"--parallel {settings.setup.parallel} is predicted: add one of them, or drop --nnodes"
        )


def _require_sizes(settings: DeclaredSettings) -> None:
    """Checks options on the size of a sample: `--seq-len`, `--lengths`, `--batching` and `--maximize`.

    Raises:
        UsageError: two of them contradict each other.
    """
    if settings.lengths is None and settings.batching is not Batching.SHUFFLED:
        raise UsageError("--batching is about the lengths of your data: give them with --lengths FILE")
    at_odds = _at_odds_with_found_sizes(settings)
    if settings.lengths is not None and at_odds is not None:
        raise UsageError(f"--lengths cannot be combined with {at_odds}: drop one of them")
    if settings.maximize is not Maximized.SEQ_LEN:
        if settings.batch_size is not None:
            raise UsageError(
                "--batch-size is for --maximize seq-len: add that, or leave --batch-size out to search for "
                "the largest batch"
            )
        return
    wants = (
        "--seq-len" if settings.knobs.seq_len is not None
        else at_odds or (None if settings.lengths is None else "--lengths")
    )  # fmt: skip
    if wants is not None:
        raise UsageError(f"--maximize seq-len cannot be combined with {wants}: drop one of them")


def _at_odds_with_found_sizes(settings: DeclaredSettings) -> str | None:
    """Name of a given option that excludes a search for the largest sample; None without one."""
    return (
        "--search seq-len=…" if "seq_len" in dict(settings.searched)
        else "--script" if settings.script is not None
        else "--device cpu" if settings.device == "cpu"
        else "--global-batch" if settings.knobs.global_batch is not None
        else None
    )  # fmt: skip


def asks_to_measure(settings: DeclaredSettings) -> str | None:
    """Text of the given option that asks for measured runs, such as `--device cuda` or `--probe measure`.

    None if no option does: batches are then run only if a suitable GPU is found, and otherwise predicted.
    """
    return (
        None if settings.probe == "predict"
        else f"--device {settings.device}" if settings.device != "auto"
        else "--probe measure" if settings.probe == "measure"
        else None
    )  # fmt: skip
