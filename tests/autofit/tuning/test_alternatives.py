"""Workloads whose batches depend on the data: tuned on typical or on worst batches, and the difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autofit
from autofit.answers.tune.answer import answer_in_words
from autofit.dispatch.inline import InlineDispatcher
from autofit.errors import UsageError
from autofit.events import ignore
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer
from autofit.tuning import session
from autofit.tuning.result import TuneResult
from autofit_workers.spec.protocol import Evidence

PADDED = Path(__file__).parents[1] / "padded_text.py"
ALIKE = f"{PADDED}:padded_alike"
OF_THE_DATA = f"{PADDED}:workload"
SMALL = f"{PADDED.with_name('tiny_workloads.py')}:small"
OPTIONS: dict[str, Any] = {"conv_algo": "cudnn", "gpu_mem": "1500M", "max_batch": 2000}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], TuneResult]:
    """The answer to a model with typical or with worst batches, each found once."""
    found: dict[tuple[str, bool], TuneResult] = {}

    def search(model: str, worst_case: bool) -> TuneResult:
        if (model, worst_case) not in found:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
                found[model, worst_case] = autofit.tune(model, worst_case=worst_case, **OPTIONS)
        return found[model, worst_case]

    return search


def test_each_kind_is_tuned_alone_and_the_difference_told_with_either(tuned: Any) -> None:
    typical, worst = tuned(ALIKE, False), tuned(ALIKE, True)
    assert typical.best.batch_size > 3 * worst.best.batch_size  # four times the tokens a sample
    assert (typical.batch_kinds.tuned, worst.batch_kinds.tuned) == ("typical", "worst")
    for result in (typical, worst):
        assert result.batch_kinds.typical.largest_batch == typical.best.batch_size
        assert result.batch_kinds.worst.largest_batch == worst.best.batch_size
        assert result.batch_kinds.batch_size == result.best.batch_size
    assert typical.batch_kinds.typical.peak_bytes == typical.best.interval.high_bytes
    assert worst.batch_kinds.worst.peak_bytes == worst.best.interval.high_bytes
    assert typical.batch_kinds.worst.peak_bytes > typical.budget.usable_bytes
    assert (typical.estimate.batch_kind, worst.estimate.batch_kind) == ("typical", "worst")
    assert typical.study != worst.study


def test_the_difference_is_said_in_one_sentence_and_in_the_document(tuned: Any) -> None:
    typical, worst = tuned(ALIKE, False), tuned(ALIKE, True)
    _, sentence = answer_in_words(typical)
    largest = typical.best.batch_size
    assert sentence.startswith(
        f"Typical batches fit up to batch {largest}; the worst batches fit up to batch "
        f"{worst.best.batch_size}, as they are predicted to need "
    )
    assert sentence.endswith(f" at batch {largest}; --worst-case tunes on them.")
    assert "--worst-case" not in answer_in_words(worst)[1]
    document = json.loads(typical.to_json())
    assert document["batch_kinds"]["worst"]["largest_batch"] == worst.best.batch_size
    assert TuneResult.from_dict(document).batch_kinds == typical.batch_kinds


def test_typical_batches_that_lengthen_with_their_size_are_compared_too(tuned: Any) -> None:
    result = tuned(OF_THE_DATA, False)
    assert result.batch_kinds.typical.largest_batch == result.best.batch_size
    # Batches of that size are likely to have a text of 256 tokens in them, and most have none.
    assert 1.2 * result.batch_kinds.worst.largest_batch < result.best.batch_size


def test_a_workload_without_kinds_says_nothing_of_them_and_refuses_the_worst(state_dir: Path) -> None:
    assert autofit.tune(SMALL, gpu_mem="6G", conv_algo="native").batch_kinds is None
    with pytest.raises(UsageError, match=r"--worst-case: small makes one kind of batch; let its make_batch"):
        autofit.tune(SMALL, gpu_mem="6G", worst_case=True)
    with pytest.raises(UsageError, match="makes one kind of batch"):
        autofit.estimate(SMALL, batch_size=2, worst_case=True)


def test_one_configuration_is_predicted_and_checked_with_either_kind(state_dir: Path) -> None:
    estimates = [autofit.estimate(ALIKE, batch_size=256, worst_case=worst) for worst in (False, True)]
    typical, worst = (each.peak_reserved_bytes for each in estimates)
    assert worst > 2 * typical
    checks = [
        autofit.check(ALIKE, batch_size=256, gpu_mem="1G", worst_case=worst).verdict
        for worst in (False, True)
    ]
    assert checks == ["fits", "does-not-fit"]
    assert autofit.peak_curve(ALIKE, worst_case=True)(256).peak_reserved_bytes == worst


@pytest.mark.process
def test_the_worst_batch_is_what_a_measured_trial_runs(state_dir: Path) -> None:
    """On the CPU, with real children; the other kind beside the answer is a prediction."""
    options = {"model": ALIKE, "device": "cpu", "gpu_mem": "2G", "threads": 1, "max_batch": 8}

    def search(*, worst_case: bool) -> TuneResult:
        settings = resolve_settings({**options, "worst_case": worst_case, "soak_steps": 0}, {}, None)
        connect = lambda *_: InlineDispatcher()  # noqa: E731
        return session.run(settings, refer(settings.model), emit=ignore, connect=connect)

    typical, worst = search(worst_case=False), search(worst_case=True)
    assert typical.best is not None
    assert worst.best is not None
    assert typical.best.batch_size == worst.best.batch_size == 8
    assert [trial.evidence for trial in worst.trials] == [Evidence.MEASURED_CPU]
    measured = [result.trials[-1].peaks.allocated_bytes for result in (typical, worst)]
    assert None not in measured
    assert measured[1] > measured[0] + 8 * 2**20
    assert worst.batch_kinds is not None
    assert worst.batch_kinds.worst.evidence is Evidence.MEASURED_CPU
    assert worst.batch_kinds.typical.evidence is Evidence.PREDICTED
    assert worst.batch_kinds.worst.peak_bytes > worst.batch_kinds.typical.peak_bytes
