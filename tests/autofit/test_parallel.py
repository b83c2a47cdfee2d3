"""`--parallel`: the answer is one rank's, with its buckets or shards and NCCL's memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import autofit
from autofit.answers.tune.answer import answer_in_words
from autofit.dispatch.base import Devices
from autofit.dispatch.inline import InlineDispatcher
from autofit.errors import DispatchError, UsageError
from autofit.hardware.budget import make_budget
from autofit.hardware.gpus import LocalGpu
from autofit.hardware.nccl import communicator_interval
from autofit.settings.resolve import resolve_settings
from autofit.settings.target import Target, resolve_target
from autofit.tuning.result import TuneResult
from autofit_workers.spec.parallel_kinds import PARALLEL_FORMS
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup

MODEL = "davenet-audio"
FAULTY = Path(__file__).parents[1] / "faults" / "faulty.py"
GIB = 1024**3
CARD = LocalGpu(
    name="Tesla T4",
    uuid="a",
    architecture="sm_75",
    total_bytes=15 * GIB,
    used_bytes=0,
    driver_version="1",
)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        return autofit.tune(MODEL, gpu="t4", conv_algo="native", parallel="ddp:4")


def test_the_answer_is_one_ranks_and_the_samples_are_those_of_all(tuned: TuneResult) -> None:
    assert tuned.best is not None
    batch_size = tuned.best.batch_size
    sentences = answer_in_words(tuned)
    assert sentences[1] == (
        f"That is 4 ranks with a batch of {batch_size} each: {4 * batch_size} samples a step."
    )
    document = json.loads(tuned.to_json())
    assert (document["num_ranks"], document["samples_per_step"]) == (4, 4 * batch_size)
    assert document["estimate"]["num_ranks"] == 4
    assert TuneResult.from_dict(document).num_ranks == 4
    assert any("one of 4 ranks is predicted" in note for note in tuned.notes)


def test_ranks_that_cannot_be_measured_are_predicted_alone() -> None:
    found = {
        each: Parallel.parse(each).can_be_measured
        for each in ("fsdp:2", "fsdp:2+offload", "cp:2", "zero3:2+offload")
    }
    assert [each for each, can in found.items() if can] == ["fsdp:2"]


def test_the_budget_leaves_room_for_nccl(tuned: TuneResult) -> None:
    alone = make_budget(15 * GIB, architecture="sm_75", card="t4")
    ranks = make_budget(15 * GIB, architecture="sm_75", card="t4", mesh=(4,))
    nccl = communicator_interval(4)
    assert ranks.context_bytes - alone.context_bytes == nccl.high_bytes
    assert alone.usable_bytes - ranks.usable_bytes == nccl.high_bytes
    assert tuned.budget.context_bytes == ranks.context_bytes
    assert any(said.startswith("NCCL: 1638 MiB assumed for each of 4 ranks") for said in ranks.assumptions)
    assert nccl.low_bytes < communicator_interval(2).likely_bytes < nccl.likely_bytes < nccl.high_bytes


def test_a_rank_takes_its_gradients_once_more(state_dir: Path) -> None:
    alone, rank, many = (
        autofit.estimate(MODEL, batch_size=8, gpu="t4", parallel=parallel)
        for parallel in ("ddp:1", "ddp:2", "ddp:64")
    )
    assert alone == autofit.estimate(MODEL, batch_size=8, gpu="t4")
    assert rank.peak_reserved_bytes == many.peak_reserved_bytes > alone.peak_reserved_bytes
    assert rank.breakdown.gradients > alone.breakdown.gradients
    assert (rank.samples_per_step, many.to_dict()["samples_per_step"]) == (16, 512)
    curve = autofit.peak_curve(MODEL, gpu="t4", parallel="ddp:2")
    assert curve(8).peak_reserved_bytes == rank.peak_reserved_bytes


def test_a_check_is_of_one_rank(state_dir: Path) -> None:
    result = autofit.check(MODEL, batch_size=8, gpu="t4", parallel="ddp:4")
    assert (result.verdict, result.num_ranks) == ("fits", 4)


def target_on(num_gpus: int, **options: str) -> Target:
    """What is meant on a machine, or a cluster, with so many cards."""
    settings = resolve_settings({"model": MODEL, "parallel": "ddp:4", **options}, {}, None)
    return resolve_target(
        settings,
        local_gpus=lambda: (CARD,) * (0 if settings.address else num_gpus),
        reachable=lambda: Devices(num_gpus=num_gpus, names=(CARD.name,) * num_gpus),
    )


def test_ranks_are_measured_where_that_is_asked_for() -> None:
    assert target_on(8).probe is None
    assert target_on(8, probe="measure").probe is Probe.CUDA
    assert target_on(4, device="cuda").is_own_budget
    assert target_on(0, device="cpu", gpu_mem="4G").probe is Probe.CPU
    # A node with as many may still come: the dispatcher says for how long it waits.
    assert target_on(2, probe="measure", gpu="t4", address="auto").probe is Probe.CUDA


@pytest.mark.parametrize(
    "options", [{"probe": "measure"}, {"device": "cuda"}, {"device": "cpu", "gpu_mem": "4G"}]
)
def test_one_rank_is_predicted_and_never_measured_alone(options: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match="--rank names the rank that is predicted and cannot be combined with --"
    ):
        target_on(8, rank="1", **options)
    with pytest.raises(UsageError, match="--rank names the rank that is predicted and cannot be combined"):
        target_on(8, **{**options, "rank": "all"})
    assert target_on(8, rank="1", probe="predict").probe is None


@pytest.mark.parametrize(
    ("parallel", "why"),
    [
        ("pp:4", "how long its stages wait for each other"),
        ("zero3:4+offload", "the host's part of the step"),
        ("device-map:2", "how long cards wait for each other"),
    ],
)
def test_the_throughput_of_ranks_is_refused_where_no_times_are_predicted(
    parallel: str, why: str, state_dir: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        autofit.tune(MODEL, gpu="t4", parallel=parallel, objective="throughput")


@pytest.mark.parametrize(("num_gpus", "has"), [(1, "has 1 GPU to"), (3, "has 3 GPUs to")])
def test_more_ranks_than_cards_are_refused(num_gpus: int, has: str) -> None:
    with pytest.raises(DispatchError) as refused:
        target_on(num_gpus, probe="measure")
    assert f"this machine {has} measure on, and each of the 4 ranks of --parallel ddp:4" in str(refused.value)
    assert refused.value.exit_code == 5


def test_an_inline_dispatcher_says_what_ranks_ask_for_and_what_is_there() -> None:
    ranks = Setup(parallel=Parallel.parse("ddp:2"))
    workload = WorkloadRef(kind="builtin", target=MODEL)
    spec = TrialSpec(workload=workload, batch_size=1, probe=Probe.CUDA, setup=ranks)
    with (
        InlineDispatcher(gpus=lambda: (CARD,)) as dispatcher,
        pytest.raises(DispatchError, match=r"it asks for 2 CPU, 2 GPU, and here are .* CPU, 1 GPU: ask for"),
    ):
        dispatcher.submit(spec)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"parallel": "zero"},
            "--parallel: 'zero' is not ddp:N, fsdp:N, hsdp:RxS, fsdp:N\\+offload, tp:N, cp:N, ",
        ),
        ({"parallel": "ddp"}, "'ddp' is not ddp:N"),
        ({"parallel": "ddp:0"}, "'ddp:0' is not ddp:N"),
        ({"parallel": "hsdp:8"}, "'hsdp:8' is not ddp:N"),
        ({"parallel": "fsdp1:2,tp:2"}, "fsdp1 goes with no other kind; use fsdp, as in fsdp:4,tp:2"),
        ({"parallel": "zero4:8"}, r"'zero4:8' is not ddp:N.*zero1:N, zero2:N, zero3:N or zero3:N\+offload"),
        ({"parallel": "zero1:2000000"}, "zero1:2000000: at most 1048576 ranks train together"),
        (
            {"search": "parallel=fsdp+tp", "nproc": "1024", "nnodes": "1025"},
            "--nproc 1024 on --nnodes 1025 are 1049600 ranks: ask for at most",
        ),
        ({"parallel": "zero3:0"}, "'zero3:0' is not ddp:N"),
        (
            {"parallel": "zero3:2+offload", "probe": "measure"},
            r"--parallel zero3:2\+offload is predicted and not measured, and --probe measure measures",
        ),
        ({"parallel": "zero3:4,tp:2"}, "zero3:4,tp:2: zero goes with no other kind; use fsdp"),
        ({"parallel": "zero3:1+offload"}, r"zero3:1\+offload: at least 2 ranks train together"),
        ({"parallel": "device-map:2,tp:2"}, "device-map is of one process and goes with no other kind"),
        ({"parallel": "fsdp1:1+offload"}, r"fsdp1:1\+offload: at least 2 ranks train together"),
        ({"parallel": "fsdp:1+offload"}, "fsdp:1: at least 2 ranks train together"),
        ({"parallel": "cp:2,tp:2"}, "cp:2,tp:2: cp goes with fsdp and no other kind, as in fsdp:4,cp:2"),
        ({"parallel": "ep:2,tp:2"}, "ep:2,tp:2: ep goes with fsdp and hsdp and no other kind, as in fsdp:4,"),
        ({"parallel": "tp:4+offload"}, r"'tp:4\+offload' is not ddp:N.*fsdp:N\+offload"),
        ({"parallel": "hsdp:2x1"}, "hsdp of one shard shards nothing: use ddp:N"),
        ({"parallel": "hsdp:2x0"}, "'hsdp:2x0' is not ddp:N"),
        ({"parallel": "fsdp:4x2"}, "'fsdp:4x2' is not ddp:N"),
        ({"parallel": "fsdp:4,fsdp:2"}, "fsdp:4,fsdp:2 names one kind of parallelism twice"),
        (
            {"parallel": "ddp:2,tp:2"},
            "ddp:2,tp:2: ddp goes with no other kind; for replicas of shards use hsdp",
        ),
        ({"parallel": "fsdp:8", "rank": "9"}, "--rank 9: the ranks of fsdp:8 are 0 to 7"),
        ({"rank": "1"}, "--rank 1 needs ranks to be one of: name them with --parallel"),
        ({"parallel": "fsdp:8", "rank": "-1"}, "'-1' is not a rank: expected a number from 0 on, or all"),
        (
            {"nnodes": "2"},
            "--nnodes spreads ranks over nodes, and there is only one rank: name more with --parallel",
        ),
        (
            {"parallel": "fsdp:8", "nnodes": "2"},
            "--nnodes spreads the ranks of measured trials, and without .* --parallel fsdp:8 is predicted",
        ),
        ({"rank": "all"}, "--rank all is of the ranks of --parallel, as in fsdp:8: add those, or drop it"),
        ({"parallel": "ddp:x"}, "'ddp:x' is not ddp:N"),
    ],
)
def test_what_cannot_be_predicted_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_settings({"model": MODEL, "gpu_mem": "8G", **options}, {}, None)


@pytest.mark.parametrize("form", PARALLEL_FORMS)
def test_every_form_that_is_told_is_read_and_documented(form: str) -> None:
    text = form.replace("SCHEDULE", "gpipe").replace("RxS", "2x2").replace("N", "4").replace("M", "4")
    assert str(Parallel.parse(text)).startswith(text.partition("+gpipe")[0])
    page = (Path(__file__).parents[2] / "docs" / "pages" / "many-gpus.md").read_text(encoding="utf-8")
    section = page.partition("## Ways to train on several GPUs")[2].partition("\n## ")[0]
    assert re.search(rf"`{form.partition(':')[0]}:\d", section)


def test_the_python_call_refuses_alike() -> None:
    with pytest.raises(UsageError, match="parallel: 'zero:2' is not ddp:N"):
        autofit.estimate(MODEL, batch_size=1, parallel="zero:2")
    with pytest.raises(UsageError, match="is for training: ranks exchange gradients"):
        autofit.estimate(MODEL, batch_size=2, mode="infer", parallel="ddp:2")


@pytest.mark.parametrize(
    "text",
    [
        "ddp:8",
        "fsdp:8",
        "hsdp:2x4",
        "tp:2",
        "fsdp:4,tp:2",
        "hsdp:2x4,tp:2",
        "zero1:8",
        "zero3:2+offload",
        "device-map:2",
        "fsdp1:4+offload",
        "fsdp1:2+grad-op+offload",
        "ddp:1",
    ],
)
def test_what_was_read_is_written_so(text: str) -> None:
    parallel = Parallel.parse(text)
    assert str(parallel) == text
    assert Parallel.parse("tp:2,fsdp:4") == Parallel.parse("fsdp:4,tp:2")


def test_ranks_of_tensor_parallelism_share_a_batch_and_each_dimension_has_a_communicator() -> None:
    both = Parallel.parse("fsdp:4,tp:2")
    assert (both.num_ranks, both.num_replicas, both.mesh) == (8, 4, (4, 2))
    one, two = (make_budget(80 * GIB, architecture="sm_80", mesh=mesh) for mesh in ((8,), (4, 2)))
    assert two.context_bytes > one.context_bytes


@pytest.mark.process
def test_a_search_measures_all_ranks_and_its_document_has_each(state_dir: Path) -> None:
    result = autofit.tune(
        f"{FAULTY}:healthy",
        device="cpu",
        gpu_mem="2G",
        parallel="ddp:2",
        dispatch="inline",
        threads=1,
        max_batch=2,
        soak_steps=0,
    )
    assert result.best is not None
    assert (result.best.batch_size, result.best.evidence) == (2, "measured-cpu")
    assert "each trial ran 2 ranks together on one machine" in " ".join(result.notes)
    document = json.loads(result.to_json())
    (trial,) = [each for each in document["trials"] if each["batch_size"] == 2]
    assert (trial["parallel"], document["parallel"], document["samples_per_step"]) == ("ddp:2", "ddp:2", 4)
    needs = [
        max(each["peaks"][kind] for kind in ("device_bytes", "private_bytes")) for each in trial["ranks"]
    ]
    assert len(needs) == 2
    assert trial["rank"] == needs.index(max(needs))
    assert TuneResult.from_dict(document).trials == result.trials


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pp:4+zigzag", "pp:4.zigzag: 'zigzag' is not a schedule: choose 1f1b, gpipe, interleaved1f1b, "),
        ("pp:4+1f1b+2", "pp:4.1f1b.2: that schedule takes 4 microbatches or more, one for each stage"),
        ("pp:4+gpipe+many", "'many' is not a number of microbatches, as in pp:4.gpipe.4"),
        ("pp:x", "'pp:x' is not ddp:N"),
        ("pp:2,fsdp1:2", "fsdp1 goes with no other kind; use fsdp, as in fsdp:4,tp:2"),
        ("ddp:2,pp:2", "ddp goes with no other kind"),
    ],
)
def test_a_pipeline_that_there_is_not_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_settings({"model": MODEL, "gpu_mem": "8G", "parallel": text}, {}, None)


def test_ranks_of_a_pipeline_share_its_microbatches() -> None:
    pipeline = Parallel.parse("pp:4+interleaved1f1b+16")
    assert (str(pipeline), pipeline.num_ranks, pipeline.num_batches) == ("pp:4+interleaved1f1b+16", 4, 16)
    assert pipeline.pipeline is not None
    assert [pipeline.pipeline.stages_of(rank) for rank in range(2)] == [(0, 4), (1, 5)]
    assert (str(Parallel.parse("pp:4+1f1b+4")), str(Parallel.parse("pp:2+gpipe"))) == ("pp:4", "pp:2+gpipe")
    returning = Parallel.parse("pp:2+zbvzerobubble").pipeline
    assert returning is not None
    assert [returning.stages_of(rank) for rank in range(2)] == [(0, 3), (1, 2)]


def test_the_stage_that_needs_the_most_is_the_answer(state_dir: Path) -> None:
    file = Path(__file__).parents[1] / "workers" / "tracing" / "sharded_workloads.py"
    estimate = autofit.estimate(f"{file}:gpt", batch_size=2, gpu="t4", parallel="pp:3", rank="all")
    assert [each.rank for each in estimate.ranks] == [0, 1, 2]
    needs = {each.rank: each.interval.high_bytes for each in estimate.ranks}
    assert needs[estimate.rank] == max(needs.values()) == estimate.interval.high_bytes
    assert estimate.samples_per_step == 6


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        ({"parallel": "pp:4"}, None),
        ({"parallel": "pp:2,fsdp:2"}, None),
        ({"parallel": "pp:4", "rank": "0"}, 0),
        ({"parallel": "fsdp:4"}, 0),
        ({"parallel": "pp:4", "probe": "measure"}, 0),  # all are run
    ],
)
def test_of_a_pipeline_the_rank_that_needs_the_most_is_asked_for_unless_one_is_named(
    options: dict[str, str], rank: int | None
) -> None:
    assert resolve_settings({"model": MODEL, **options}, {}, None).setup.rank == rank


def test_ways_of_training_together_are_compared_by_the_rank_that_needs_the_most() -> None:
    settings = resolve_settings({"model": MODEL, "search": "parallel=fsdp:4,pp:4"}, {}, None)
    assert [settings.with_parallel(each).setup.rank for each in settings.parallels] == [0, None]
