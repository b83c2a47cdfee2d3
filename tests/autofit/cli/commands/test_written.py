"""`--write`: which files are written, what is said of them, and when none are."""

from __future__ import annotations

import dataclasses
import json

import pytest

from autofit.cli.options.written import WRITE
from autofit.errors import UsageError
from autofit.written.formats import FORMATS

TUNE = ("tune", "--model", "davenet", "--gpu-mem", "16G")


def test_the_answer_is_written_and_what_is_left_is_said(autofit, results, tmp_path):
    args, env = tmp_path / "args.json", tmp_path / "e.env"
    result = results.answer()
    ran = autofit(
        *TUNE, "--write", f"transformers-json={args}", "--write", f"env={env}", tune=lambda *_: result
    )
    assert ran.code == 0
    assert json.loads(args.read_text())["per_device_train_batch_size"] == 118
    assert f"written to {args} (transformers-json): HfArgumentParser" in ran.err
    assert "--conv-algo native" in ran.err
    assert not env.exists()
    assert f"{env} needs no change" in ran.err


def test_a_script_and_its_ranks_are_written_for_torchrun(autofit, results, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    told = ("--script", str(script), "--batch-arg", "--bs", "--nproc", "4", "--gpu-mem", "16G")
    result = results.answer(workload="train", parallel="script:4", num_ranks=4)
    ran = autofit("tune", *told, "--write", f"torchrun={tmp_path / 'run.sh'}", tune=lambda *_: result)
    assert ran.code == 0, ran.err
    assert (tmp_path / "run.sh").read_text() == f"torchrun --nnodes=1 --nproc-per-node=4 {script} --bs 118\n"


def test_where_nothing_fits_nothing_is_written(autofit, results, tmp_path):
    path = tmp_path / "a.yaml"
    ran = autofit(*TUNE, "--write", f"accelerate={path}", tune=lambda *_: results.nothing_fits())
    assert ran.code == 3
    assert f"nothing was written to {path}: nothing fits" in ran.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("wish", "words"), [("acclerate=a", "Did you mean accelerate?"), ("env=/no/such/a", "cannot write")]
)
def test_a_wrong_wish_is_refused_before_the_search(autofit, wish, words):
    def search(*_):
        raise AssertionError("searched")

    ran = autofit(*TUNE, "--write", wish, tune=search)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_several_cards_have_no_one_setting(autofit):
    for command in (("tune",), ("check", "--batch-size", "8"), ("estimate", "--batch-size", "8")):
        ran = autofit(*command, "--model", "davenet", "--gpu", "t4,v100-16g", "--write", "env=a")
        assert ran.code == 2
        assert "one card" in ran.err


def test_an_estimate_is_written_as_it_is(autofit, results, tmp_path):
    path = tmp_path / "ds.json"
    told = ("estimate", "--model", "davenet", "--batch-size", "94", "--write", f"deepspeed={path}")
    assert autofit(*told, estimate=lambda *_: results.estimate(94)).code == 0
    assert json.loads(path.read_text())["train_micro_batch_size_per_gpu"] == 94


def test_python_writes_the_same_file(results, tmp_path):
    result = dataclasses.replace(results.answer(), parallel="ddp:2", num_ranks=2)
    written = result.write("accelerate", tmp_path / "a.yaml")
    assert "num_processes: 2" in (tmp_path / "a.yaml").read_text()
    assert any("batch_size=118" in note for note in written.notes)
    with pytest.raises(UsageError, match="nothing fits"):
        results.nothing_fits().write("accelerate", tmp_path / "b.yaml")


def test_the_shell_completes_formats_then_files():
    (option,) = WRITE(lambda: None).__click_params__
    names = [item.value for item in option.shell_complete(None, "t")]
    assert names == [f"{name}=" for name in FORMATS if name.startswith("t")]
    assert [item.type for item in option.shell_complete(None, "env=a")] == ["file"]
