from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil

import pytest

from autofit import paths
from autofit.errors import InfrastructureError
from autofit.identity import told_version
from autofit.predict import self_test
from autofit.predict.self_test import checked, require_prediction, run_self_test
from autofit_workers.spec.protocol import Probe, TrialError, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.tracing.self_test import findings
from autofit_workers.trials import door
from autofit_workers.trials.outcomes import without_answer


@pytest.fixture(scope="module")
def outcome() -> TrialOutcome:
    """What the installed PyTorch makes of the self-test."""
    seen: list[TrialOutcome] = []

    def run(spec: TrialSpec) -> TrialOutcome:
        seen.append(door.run(spec))
        return seen[-1]

    assert run_self_test(run).findings == ()
    return seen[0]


def spec() -> TrialSpec:
    return TrialSpec(workload=WorkloadRef(kind="builtin", target="vgg16"), batch_size=2, probe=Probe.PREDICT)


def test_the_result_is_remembered_for_this_build_of_pytorch(outcome):
    calls: list[TrialSpec] = []

    def run(spec: TrialSpec) -> TrialOutcome:
        calls.append(spec)
        return outcome

    require_prediction(run)
    require_prediction(run)
    assert len(calls) == 1
    assert len(list(paths.cache_dir().iterdir())) == 1


def test_the_result_is_not_remembered_beyond_the_code_that_traces(monkeypatch, tmp_path):
    tracing = tmp_path / "tracing"
    shutil.copytree(self_test._TRACING, tracing)
    monkeypatch.setattr(self_test, "_TRACING", tracing)
    self_test._build.cache_clear()
    before = self_test._build()
    (tracing / "probe.py").write_text("changed = True\n")
    self_test._build.cache_clear()
    changed = self_test._build()
    self_test._build.cache_clear()
    assert changed != before


@pytest.mark.usefixtures("fresh_build")
def test_nor_on_a_machine_of_another_kind_that_shares_the_folder(monkeypatch):
    before = self_test._build()
    self_test._build.cache_clear()
    monkeypatch.setattr(self_test.platform, "machine", lambda: "riscv64")
    assert self_test._build() != before


def test_a_checked_runner_tests_itself_before_its_first_trial_only(outcome):
    calls: list[str] = []

    def run(spec: TrialSpec) -> TrialOutcome:
        calls.append(spec.workload.name)
        return outcome

    run_checked = checked(run)
    run_checked(spec())
    run_checked(spec())
    assert calls == ["self_test.py:workload", "vgg16", "vgg16"]


@pytest.mark.parametrize(
    ("operator", "finding"),
    [
        ("aten._foreach_sqrt", "Adam does not take its foreach path"),
        ("aten.native_dropout", "dropout does not run as the fused operator"),
        ("aten.silu_backward", "silu_backward is decomposed"),
        ("aten._scaled_dot_product_efficient_attention", "attention is not fused"),
        ("aten.convolution_backward", "backward was not recorded"),
    ],
)
def test_a_missing_operator_is_named_in_words(outcome, operator, finding):
    trace = Trace.from_json(outcome.trace_json)
    renamed = tuple(
        dataclasses.replace(a, operator="aten.other") if a.operator == operator else a
        for a in trace.allocations
    )
    broken = dataclasses.replace(trace, allocations=renamed)
    assert any(found.startswith(finding) for found in findings(broken))


def test_a_trace_without_frees_is_found_out(outcome):
    trace = Trace.from_json(outcome.trace_json)
    broken = dataclasses.replace(trace, events=tuple(e for e in trace.events if e >= 0))
    assert "activations are not freed" in findings(broken)


def test_a_pytorch_that_aborts_is_refused_by_its_version_and_not_remembered():
    def run(spec: TrialSpec) -> TrialOutcome:
        error = TrialError(kind="environment", message="the process was killed by SIGABRT")
        return without_answer(spec, Verdict.LOST, error)

    with pytest.raises(
        InfrastructureError, match=r"PyTorch 2\.\d+.*SIGABRT.*Install PyTorch 2\.6 to 2\.15"
    ) as caught:
        require_prediction(run)
    assert caught.value.exit_code == 5
    assert list(paths.cache_dir().iterdir()) == []


@pytest.fixture
def fresh_build():
    """The digest of the build, made anew in a test and after it."""
    self_test._build.cache_clear()
    yield
    self_test._build.cache_clear()


@pytest.mark.usefixtures("fresh_build")
@pytest.mark.parametrize("version", ["2.5.1", "2.16.0"])
def test_a_release_that_was_not_tried_predicts_where_its_self_test_passes_and_answers_say_so(
    version, outcome, monkeypatch
):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    traced = dataclasses.replace(outcome, environment={"torch": version})
    require_prediction(lambda _spec: traced)
    assert told_version(version) == f"{version} (predictions unverified)"


def test_a_tested_release_is_named_by_its_version_alone():
    assert told_version("2.6.0+cu124") == "2.6.0+cu124"
    assert told_version("2.15.0") == "2.15.0"
