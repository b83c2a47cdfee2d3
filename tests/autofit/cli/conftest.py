"""Fixtures of the tests of the command line: a way to call it, and answers to render."""

from __future__ import annotations

import dataclasses
import pathlib
import types
from collections.abc import Callable
from typing import Any

import pytest

from autofit.cli import main
from autofit.cli.backend import Backend
from autofit.hardware.budget import make_budget
from autofit.predict.confidence import Calibration, ModelClass
from autofit.predict.estimate import Breakdown, Estimate, Interval, LargeTensor, WorkspaceSpan
from autofit.search.choice import RecommendedBy
from autofit.tuning.compared import CardAnswer
from autofit.tuning.found import Best, FrontierEntry, Recommended
from autofit.tuning.result import TuneResult
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from tests.commands import Finished

GIB = 1024**3
MIB = 1024**2
# A context of round size, so that the sums in the texts can be followed.
BUDGET = dataclasses.replace(
    make_budget(16 * GIB),
    context_bytes=512 * MIB,
    assumptions=("CUDA context of 512 MiB assumed for sm_80",),
)
CALIBRATION = Calibration(
    model_class=ModelClass.DENSE,
    cards="ampere-ada",
    low_share=-0.02,
    high_share=0.03,
    num_rows=120,
    num_families=9,
    sources=("a-table",),
)


@pytest.fixture
def autofit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Calls the console entry; returns its exit code and outputs."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str, **doors: Any) -> Finished:
        capsys.readouterr()
        code = main(list(arguments), backend=Backend(**doors))
        return Finished(code, *capsys.readouterr())

    return call


@pytest.fixture
def workload_file(tmp_path: pathlib.Path) -> pathlib.Path:
    """File of a user's small workloads: one works, the others fail in one way each."""
    path = tmp_path / "mine.py"
    path.write_text(_WORKLOADS)
    return path


_WORKLOADS = """
import torch
from autofit_workers.workload import Workload


def workload(**parts):
    usual = {
        "build_model": lambda: torch.nn.Linear(64, 8),
        "make_batch": lambda batch_size, device: torch.ones(batch_size, 64, device=device),
        "loss": lambda model, batch: model(batch).sum(),
        "optimizer": "adam",
    }
    return Workload(**{**usual, **parts})


@torch.library.custom_op("mine::kernel", mutates_args=())
def kernel(rows: torch.Tensor) -> torch.Tensor:
    if type(rows) is not torch.Tensor:
        raise RuntimeError("a compiled extension wants memory")
    return rows.clone()


def own_kernel(model, batch):
    return kernel(model(batch)).sum()


def typo(model, batch):
    return model.forwrad(batch)


healthy = workload()
ignores_batch_size = workload(make_batch=lambda batch_size, device: torch.ones(7, 64, device=device))
vector_loss = workload(loss=lambda model, batch: model(batch))
without_shapes = workload(loss=own_kernel)
raises = workload(loss=typo)
"""


def predicted_estimate(batch_size: int = 94, conv_algo: str = "cudnn") -> Estimate:
    return Estimate(
        workload="davenet",
        batch_size=batch_size,
        knobs=Knobs(conv_algo=conv_algo),
        mode="train",
        peak_allocated_bytes=10 * GIB,
        peak_reserved_bytes=14 * GIB,
        device_peak_bytes=14 * GIB + 512 * MIB,
        context_bytes=512 * MIB,
        breakdown=Breakdown(
            parameters=GIB,
            gradients=0,
            optimizer_state=GIB,
            activations=6 * GIB,
            inputs=GIB // 2,
            workspace=GIB,
            other=GIB // 2,
        ),
        interval=Interval(low_bytes=12 * GIB, likely_bytes=14 * GIB, high_bytes=15 * GIB),
        evidence=Evidence.PREDICTED,
        device=Device(kind="cuda", name="sm_80"),
        calibration=CALIBRATION,
        architectures=("sm_80", "sm_75", "sm_120"),
        workspace_bytes=WorkspaceSpan(low=0, likely=GIB, high=2 * GIB),
        largest=(
            LargeTensor(
                module="image.layers.0",
                operator="aten.convolution",
                source="/home/me/models/davenet.py:59:forward",
                num_bytes=GIB,
            ),
            LargeTensor(module="", operator="aten.zeros_like", source="<string>:1:<module>", num_bytes=GIB),
        ),
    )


def outcome(
    conv_algo: str,
    batch_size: int,
    reserved_bytes: int,
    verdict: Verdict = Verdict.FITS,
    evidence: Evidence = Evidence.PREDICTED,
) -> TrialOutcome:
    return TrialOutcome(
        verdict=verdict,
        evidence=evidence,
        device=Device(kind="cuda", name="16.00 GiB card"),
        batch_size=batch_size,
        knobs=Knobs(conv_algo=conv_algo),
        steady=Peaks(allocated_bytes=10 * GIB, reserved_bytes=reserved_bytes),
    )


def entry(conv_algo: str, largest: int | None, failing: int | None, **more: Any) -> FrontierEntry:
    fits = largest is not None
    return FrontierEntry(
        **{
            "knobs": Knobs(conv_algo=conv_algo),
            "largest_batch": largest,
            "peak_reserved_bytes": 14 * GIB if fits else None,
            "device_peak_bytes": 14 * GIB + 512 * MIB if fits else None,
            "first_failing_batch": failing,
            "reason": f"batch {failing} is predicted to reserve up to 15.05 GiB, 35.52 MiB over the budget",
            "evidence": Evidence.PREDICTED,
            **more,
        }
    )


def answer(**changes: Any) -> TuneResult:
    """Predicted answer in which cudnn reaches 94, native 118 and is the best."""
    best = Best(
        batch_size=118,
        knobs=Knobs(conv_algo="native"),
        peak_allocated_bytes=10 * GIB,
        peak_reserved_bytes=14 * GIB,
        device_peak_bytes=14 * GIB + 512 * MIB,
        evidence=Evidence.PREDICTED,
        interval=Interval(low_bytes=14 * GIB, likely_bytes=14 * GIB, high_bytes=14 * GIB),
    )
    result = TuneResult(
        workload="davenet",
        budget=BUDGET,
        device=Device(kind="cuda", name="16.00 GiB card"),
        best=best,
        frontier=(
            entry("cudnn", 94, 95),
            entry("cudnn-benchmark", 91, 92, largest_thrashing_batch=110),
            entry("native", 118, 119),
        ),
        trials=(
            outcome("cudnn", 94, 15 * GIB),
            outcome("cudnn-benchmark", 91, 15 * GIB),
            outcome("native", 118, 14 * GIB),
            outcome("native", 119, 16 * GIB, Verdict.OOM),
        ),
        wall_seconds=4.2,
        study="davenet-16.00-GiB-card-0123456789ab",
        fingerprint="0123456789abcdef",
        versions={"autofit": "0.1.0", "torch": "2.13.0"},
        estimate=dataclasses.replace(predicted_estimate(118, "native"), architectures=("sm_80",)),
        cards=(
            CardAnswer(gpu="a2", total_bytes=15_632_171_008, largest_batch=107),
            CardAnswer(gpu="t4", total_bytes=15_636_365_312, largest_batch=107),
            CardAnswer(gpu="v100-16g", total_bytes=16_913_530_880, largest_batch=116),
        ),
        notes=("a thing to know",),
    )
    return dataclasses.replace(result, **changes)


def recommending_cudnn(result: TuneResult, **changes: Any) -> TuneResult:
    """Copy of the answer with cudnn at 94 recommended, as PyTorch's default backend."""
    knobs = Knobs(conv_algo="cudnn")
    of_best = {field.name: getattr(result.best, field.name) for field in dataclasses.fields(Best)}
    recommended = Recommended(
        **{**of_best, "knobs": knobs, "batch_size": 94, **changes},
        by=RecommendedBy.DEFAULT_BACKEND,
        largest_batch=94,
        first_failing_batch=95,
        reason="batch 95 is predicted to reserve up to 16.00 GiB",
        estimate=predicted_estimate(94),
    )
    return dataclasses.replace(result, recommended=recommended)


def nothing_fits(**changes: Any) -> TuneResult:
    """Predicted answer in which batch 1 of the only setting needs 17 GiB."""
    estimate = predicted_estimate(1)
    interval = Interval(low_bytes=17 * GIB, likely_bytes=17 * GIB, high_bytes=17 * GIB)
    given = {
        "best": None,
        "frontier": (entry("cudnn", None, 1),),
        "trials": (outcome("cudnn", 1, 17 * GIB, Verdict.OOM),),
        "estimate": dataclasses.replace(estimate, interval=interval),
        "cards": (),
        **changes,
    }
    return answer(**given)


@pytest.fixture
def results() -> types.SimpleNamespace:
    """The makers of answers above, for tests to vary."""
    return types.SimpleNamespace(
        answer=answer,
        recommending_cudnn=recommending_cudnn,
        nothing_fits=nothing_fits,
        entry=entry,
        outcome=outcome,
        estimate=predicted_estimate,
    )
