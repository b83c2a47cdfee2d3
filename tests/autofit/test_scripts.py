"""A training script in place of a workload: `Script`, the options of the command line, and their errors."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

import autofit
from autofit.cli import main
from autofit.dispatch.inline import InlineDispatcher
from autofit.errors import UsageError
from autofit.events import ignore
from autofit.hardware.budget import assumed_context
from autofit.hardware.gpus import find_gpu
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer
from autofit.tuning import earlier_answers, session
from autofit_workers.spec.protocol import Evidence, WorkloadRef
from autofit_workers.spec.workloads.references import WorkloadError
from tests.commands import Finished

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_tracer")]  # a process for each script

PLAIN = Path(__file__).parents[1] / "workers" / "scripts" / "examples" / "plain.py"
_SMALL = """
import sys, torch
batch_size = int(sys.argv[1])
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = "benchmark" in sys.argv
model = torch.nn.Linear(1024, 1024).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(batch_size, 1024).to(device)).relu().sum().backward()
    optimizer.step()
"""


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """A script whose batch size is its only argument, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    path.write_text(_SMALL.replace("sys.argv[1]", "sys.argv[sys.argv.index('-n') + 1]"))
    return path


@pytest.fixture
def call(capsys, monkeypatch):
    """Calls the console entry with everything real behind it."""
    monkeypatch.setenv("COLUMNS", "100")

    def called(*arguments: str) -> Finished:
        code = main([*arguments, "--quiet"])
        return Finished(code, *capsys.readouterr())

    return called


def test_a_search_predicts_a_script_and_says_how_to_call_it(small, call):
    options = ("--script", "small.py", "--batch-arg", "-n", "--script-arg", "x", "--gpu-mem", "2G")
    finished = call("tune", *options, "--max-batch", "64")
    assert finished.code == 0, finished.err
    assert "small.py · the script's own precision and optimizer" in finished.out
    assert "small.py fits at batch 64" in finished.out
    assert "python small.py x -n 64" in finished.out


def test_a_script_that_fails_at_the_largest_size_alone_is_answered_with_a_note(small, call):
    small.write_text(small.read_text() + "    assert batch_size <= 100, 'more than the test set has'\n")
    options = ("--script", "small.py", "--batch-arg", "-n", "--gpu-mem", "2G", "--json", "--fresh")
    finished = call("tune", *options)
    document = json.loads(finished.out)
    assert finished.code == 0, finished
    assert document["best"]["batch_size"] > 100
    (note,) = [each for each in document["notes"] if "more than the test set has" in each]
    assert f"at batch size {document['best']['batch_size']} the script fails" in note


def test_a_search_measures_a_script_on_the_cpu(small):
    options = {"script": str(small), "batch_arg": "-n", "device": "cpu", "gpu_mem": "4G", "max_batch": "1"}
    settings = resolve_settings({**options, "soak_steps": "0"}, {}, None)
    dispatcher = InlineDispatcher()
    result = session.run(
        settings, refer(settings.model, settings), emit=ignore, connect=lambda *_: dispatcher
    )
    assert result.best.batch_size == 1
    assert result.best.evidence is Evidence.MEASURED_CPU
    assert result.trials[-1].num_steps_done == 4
    assert any("is not predicted, only measured" in note for note in result.notes)


def test_a_profile_shows_the_lines_and_the_layers_of_a_script(small, call):
    options = ("--script", str(small), "--batch-arg", "-n", "--batch-size", "32")
    finished = call("profile", *options, "--view", "tensors", "--json")
    assert finished.code == 0, finished.err
    assert '"weight"' in finished.out
    assert "small.py:" in call("profile", *options, "--view", "code").out


def test_the_convolutions_that_a_script_chooses_are_adopted_and_others_are_refused(small):
    script = autofit.Script(path=small, batch_argument="-n", arguments=["benchmark"])
    own = autofit.estimate(script, batch_size=8)
    assert own.knobs.conv_algo == "cudnn-benchmark"
    assert any("sets PyTorch's flags for cudnn-benchmark" in note for note in own.notes)
    named = autofit.estimate(script, batch_size=8, conv_algo="cudnn-benchmark")
    assert named.peak_reserved_bytes == own.peak_reserved_bytes
    with pytest.raises(UsageError, match=r"small\.py sets PyTorch flags .*: leave out --conv-algo native"):
        autofit.estimate(script, batch_size=8, conv_algo="native")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--script", "small.py", "--batch-name", "a b"), "is not the name of a constant"),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--batch-env", "N"),
            "say in one way how the script takes its batch size",
        ),
        (("--script", "small.py", "--batch-env", "a b"), "is not the name of an environment variable"),
        (("--script", "smal.py", "--batch-arg", "-n"), "Did you mean small.py?"),
        (("--script", "small.py", "--model", "davenet", "--batch-arg", "-n"), "cannot be combined"),
        (("--model", "davenet", "--batch-arg", "-n"), "name it with --script"),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--precision", "bf16"),
            "no effect on a script: set it inside the script",
        ),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--attention", "math"),
            "attention math has no effect on a script",
        ),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--mode", "infer"),
            "mode infer has no effect on a script",
        ),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--global-batch", "64"),
            "global_batch 64 has no effect on a script",
        ),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--parallel", "ddp:2"),
            "--parallel shards a model, and a script shards its own",
        ),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--worst-case"),
            "--worst-case has no effect on a script",
        ),
        (("--script", "small.py", "--batch-arg", "-n", "--input", "3x8x8"), "makes its own batches"),
        (
            ("--script", "small.py", "--batch-arg", "-n", "--conv-algo", "fft"),
            "conv_algo fft cannot be set from outside a script",
        ),
        (("--script", "small.py", "--batch-arg", "-n", "--what-if"), "leave them out with --script"),
    ],
)
def test_what_a_script_cannot_be_given_is_refused_before_it_runs(small, call, options, words):
    finished = call("estimate", *options, "--batch-size", "8")
    assert finished.code == 2
    assert words in finished.err
    assert not finished.out


def test_a_script_that_fails_exits_with_4_and_one_sentence(small, call):
    small.write_text("import sys\nsys.exit('no such data')")
    finished = call("estimate", "--script", "small.py", "--batch-arg", "-n", "--batch-size", "8", "--json")
    assert finished.code == 4
    message = json.loads(finished.out)["message"]
    assert message == "small.py exited with an error after 0 optimizer steps: no such data"


def test_settings_of_a_file_split_its_arguments_as_a_shell_does(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('[tune]\nscript = "train.py"\nscript-arg = "--name \'a b\' -x"\nbatch-env = "BATCH"\n')
    settings = resolve_settings({}, {}, file)
    assert (settings.model, settings.script) == ("train.py", "train.py")
    assert settings.script_arguments == ("--name", "a b", "-x")
    assert resolve_settings({"model": "davenet"}, {}, None).script is None


def test_no_answer_is_kept_of_a_script_which_may_read_any_variable(small):
    settings = resolve_settings({"script": "small.py", "batch_arg": "-n", "probe": "predict"}, {}, None)
    ref = autofit.Script(path=small, batch_argument="-n").reference()
    reachable = partial(pytest.fail, "asked")
    assert earlier_answers.question(settings, ref, local_gpus=tuple, reachable=reachable) is None


def test_a_reference_survives_its_way_to_a_worker(small):
    ref = autofit.Script(path=small, arguments=["-x"], batch_argument="n=").reference()
    from dataclasses import asdict

    assert WorkloadRef.from_dict(json.loads(json.dumps(asdict(ref)))) == ref
    assert ref.name == "small.py"
    assert ref.script.arguments_at(8) == ["-x", "n=8"]
    with pytest.raises(WorkloadError, match="in one way"):
        autofit.Script(path=small, batch_argument="n=", batch_name="BATCH")


def test_the_answer_says_which_phase_holds_the_peak(call, tmp_path):
    """An evaluation with a larger batch than the training's."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(1024, 1024).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model.train()(torch.randn(8, 1024).cuda()).sum().backward()\n"
        "    optimizer.step()\n"
        "    with torch.no_grad(): model.eval()(torch.randn(16384, 1024).cuda())\n"
    )
    options = ("estimate", "--script", str(path), "--gpu", "t4")
    document = json.loads(call(*options, "--json").out)
    peaks = {phase["name"]: phase["num_bytes"] for phase in document["phases"]}
    assert document["peak_phase"] == "evaluation"
    assert peaks["evaluation"] == document["peak_allocated_bytes"] > 2 * 16384 * 1024 * 4
    assert peaks["backward"] < peaks["evaluation"] / 2
    (line,) = (line for line in call(*options).out.splitlines() if "the peak" in line)
    assert line.split()[0] == "evaluation"


# ── ranks ───────────────────────────────────────────────────────────────────────────────────────


_KEEPS_ALL = """
import torch
model = torch.nn.Linear(64, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 64).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept = None
    with torch.no_grad():
        for _ in range(100):
            scores = model(torch.randn(1024, 64).cuda())  # 16 MiB
            kept = scores if kept is None else torch.cat([kept, scores])
"""


def test_outputs_that_are_concatenated_take_no_more_than_the_card_has(call, tmp_path):
    """Each is a new block, and the last one's is too small for the next: without a limit all would stay."""
    script = tmp_path / "keeps_all.py"
    script.write_text(_KEEPS_ALL)
    command = ("--script", str(script), "--gpu", "t4")
    there = json.loads(call("estimate", *command, "--json").out)
    alive_bytes = (100 + 99) * 16 * 1024**2
    assert alive_bytes <= there["peak_allocated_bytes"] < 1.02 * alive_bytes
    assert there["likely_verdict"] == "THRASH"
    assert there["num_alloc_retries"] > 5
    assert there["peak_reserved_bytes"] <= there["interval"]["high_bytes"] == there["limit_bytes"]
    assert there["device_peak_bytes"] <= find_gpu("t4").total_bytes
    assert there["need"]["likely_bytes"] > 4 * there["limit_bytes"]
    checked = call("check", *command, "--batch-size", "8")
    assert checked.code == 6
    assert "it likely runs but thrashes" in checked.out


@pytest.fixture
def ranks(small) -> Path:
    """The same, of ranks that join a group of all and two of halves."""
    small.write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "assert dist.get_rank() == int(os.environ['RANK']) and dist.get_world_size() == 8\n"
        "half = dist.new_subgroups(group_size=4)[0]\n"
        + small.read_text()
        + "    dist.all_reduce(model.weight.grad); dist.all_reduce(model.weight.grad, group=half)\n"
    )
    return small


_OF_RANKS = ("--script", "small.py", "--batch-arg", "-n", "--nproc", "4", "--nnodes", "2", "--rank", "5")


def test_an_estimate_says_which_rank_of_how_many_it_is_and_what_nccl_takes(ranks, call):
    asked = ("estimate", *_OF_RANKS, "--batch-size", "8", "--gpu", "a100-40g")
    finished = call(*asked, "--json")
    assert finished.code == 0, finished.err
    document = json.loads(finished.out)
    said = {key: document[key] for key in ("num_ranks", "parallel", "rank", "communicators")}
    assert said == {"num_ranks": 8, "parallel": "script:8", "rank": 5, "communicators": [8, 4]}
    of_one, of_two = (assumed_context("sm_80", "a100-40g", groups, 8)[0] for groups in ((8,), (8, 4)))
    assert document["context_bytes"] == of_two.high_bytes > of_one.high_bytes
    text = call(*asked).out
    assert "rank 5 of 8" in text
    assert "NCCL: 3276 MiB assumed for each of 8 ranks" in " ".join(text.split())


def test_a_search_and_a_check_leave_what_nccl_takes_for_all_groups(ranks, call):
    two, _ = assumed_context(None, None, (8, 4), 8)
    checked = json.loads(call("check", *_OF_RANKS, "--batch-size", "8", "--gpu-mem", "8G", "--json").out)
    assert checked["budget"]["context_bytes"] == two.high_bytes
    assert (checked["num_ranks"], checked["parallel"]) == (8, "script:8")
    finished = call("tune", *_OF_RANKS, "--gpu-mem", "8G", "--max-batch", "64", "--probe", "predict")
    assert finished.code == 0, finished.err
    assert "small.py fits at batch 64" in finished.out
    assert "rank 5 of 8" in finished.out
    assert "one of 8 ranks with a batch of 64" in finished.out
    assert "torchrun --nproc-per-node=4 --nnodes=2 small.py -n 64" in finished.out
    nothing = call("check", *_OF_RANKS, "--batch-size", "8", "--gpu-mem", "3800M")
    assert nothing.code == 2
    assert "nothing is left of 3.71 GiB for PyTorch" in nothing.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nproc", "8", "--rank", "9"), "--rank 9: torchrun starts 8 ranks of small.py, 0 to 7"),
        (("--launcher", "srun"), "'srun' is none of torchrun, accelerate, deepspeed"),
        (("--nproc", "0"), "--nproc"),
    ],
)
def test_ranks_that_are_none_are_refused_in_a_sentence(small, call, options, words):
    finished = call("estimate", "--script", "small.py", "--batch-arg", "-n", "--batch-size", "8", *options)
    assert (finished.code, finished.out) == (2, "")
    assert words in finished.err
    assert finished.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (
            "estimate",
            ("--model", "davenet", "--batch-size", "2", "--nproc", "8"),
            "add --script or that search",
        ),
        ("estimate", ("--model", "davenet", "--batch-size", "2", "--rank", "1"), "needs ranks to be one of"),
        (
            "tune",
            ("--script", "small.py", "--nproc", "8", "--device", "cpu", "--gpu-mem", "2G"),
            "predict one",
        ),
    ],
)
def test_ranks_are_of_scripts_that_are_predicted(small, call, command, options, words):
    finished = call(command, *options)
    assert (finished.code, finished.out) == (2, "")
    assert words in finished.err


def test_python_is_told_of_ranks_with_the_script(ranks):
    script = autofit.Script(path=ranks, batch_argument="-n", num_processes=4, num_nodes=2)
    estimate = autofit.estimate(script, batch_size=8, gpu="a100-40g", rank=3)
    assert (estimate.num_ranks, estimate.rank, estimate.communicators) == (8, 3, (8, 4))
    with pytest.raises(WorkloadError, match="none of torchrun"):
        autofit.Script(path=ranks, launcher="srun")


_GROWING = """
import torch
loader = torch.utils.data.DataLoader(torch.zeros(64 * 4000, 1024), batch_size=64)
model = torch.nn.Linear(1024, 65536).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outputs, number = [], 0
for batch in loader:
    output = model(batch.cuda())
    optimizer.zero_grad()
    output.sum().backward()
    optimizer.step()
    outputs.append(output.detach())
    number += 1
    if number % 2000 == 0:
        model.eval()
"""


def test_what_grows_until_the_card_is_full_does_not_fit(tmp_path, call):
    path = tmp_path / "growing.py"
    path.write_text(_GROWING)
    arguments = ("--script", str(path), "--batch-size", "64", "--gpu", "t4")
    checked = call("check", *arguments)
    assert checked.code == 3
    assert checked.out.startswith("does not fit")
    assert "16.00 MiB more is alive after each step, from growing.py:12: the budget is full at" in checked.out
    estimated = call("estimate", *arguments, "--json").document
    assert estimated["seen"] == {
        "steps": 63,
        "run_steps": 4000,
        "lengths": [],
        "phases": ["training"],
        "unseen_phases": ["evaluation"],
    }
    (growth,) = estimated["growth"]
    assert growth["line"] == f"{path}:12:<module>"
    assert growth["bytes_per_step"] == 16 * 1024**2
    assert 800 < growth["full_step"] < 1000  # of 14.5 GiB
    text = call("estimate", *arguments).out
    assert "at most" not in text
    assert f"the card is full at step {growth['full_step']} of 4,000" in " ".join(text.split())
    assert "63 steps were seen of 4,000; an evaluation was not reached" in " ".join(text.split())


def test_growth_is_the_reason_for_each_card_that_it_fills(tmp_path, call):
    path = tmp_path / "growing.py"
    path.write_text(_GROWING)
    arguments = ("--script", str(path), "--batch-size", "64", "--gpu", "t4,a100-80g")
    finished = call("check", *arguments, "--json")
    assert finished.code == 3
    text = call("check", *arguments).out
    for card in finished.document["cards"]:
        (growth,) = card["growth"]
        assert (card["verdict"], card["likely_verdict"]) == ("does-not-fit", "OOM")
        assert growth["line"] == f"{path}:12:<module>"
        assert f"memory grows: full at step {growth['full_step']:,}" in text
    assert "its memory grows with each step, also with a smaller batch" in " ".join(text.split())
