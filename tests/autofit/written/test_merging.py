"""Values merged into files that exist: what else is there stays, and what is wrong is refused."""

from __future__ import annotations

import json
import stat

import pytest

from autofit.errors import UsageError
from autofit.written.formats import FORMATS
from autofit.written.setting import ScriptStart
from autofit.written.writing import wishes, write_setting
from tests.autofit.written.materials import setting, write

TRAINS = {"precision": "amp-bf16", "checkpointing": "blocks"}


def merged(name, path, text, of):
    path.write_text(text)
    return write(name, path, of), path.read_text()


def test_yaml_keeps_comments_order_and_quotes(tmp_path):
    text = (
        "# my run\nbase_model: 'tiny'   # small\nmicro_batch_size: 1  # tuned by hand\ndatasets:\n"
        "  - path: data\n    type: alpaca\nlearning_rate: 2e-4\nbf16: auto\n"
    )
    _, after = merged("axolotl", tmp_path / "a.yaml", text, setting(**TRAINS))
    assert after.startswith(
        "# my run\nbase_model: 'tiny'   # small\nmicro_batch_size: 4  # tuned by hand\ndatasets:\n"
        "  - path: data\n    type: alpaca\nlearning_rate: 2e-4\nbf16: true\n"
    )
    assert "gradient_checkpointing: true" in after


def test_a_file_that_says_it_all_is_left_as_it_is(tmp_path):
    for name in FORMATS:
        path = tmp_path / f"{name}.out"
        of = setting("fsdp:8", **TRAINS, allocator="expandable_segments")
        write(name, path, of)
        before = path.read_bytes()
        assert not write(name, path, of).is_changed, name
        assert path.read_bytes() == before, name


def test_json_keeps_order_indent_and_other_keys(tmp_path):
    text = '{\n    "optimizer": {"type": "Lamb"},\n    "train_batch_size": 64,\n'
    text += '    "fp16": {"enabled": true}\n}\n'
    written, after = merged(
        "deepspeed", tmp_path / "ds.json", text, setting("zero3:8", optimizer="adamw", **TRAINS)
    )
    assert list(json.loads(after))[:3] == ["optimizer", "fp16", "train_micro_batch_size_per_gpu"]
    assert json.loads(after)["fp16"] == {"enabled": False}
    assert after.startswith('{\n    "optimizer"')
    assert "train_batch_size is taken out" in written.notes[0]
    assert "Lamb" in " ".join(written.notes)


def test_python_changes_arguments_of_the_call_alone(tmp_path):
    text = (
        "import x  # größer\n\nargs = x.TrainingArguments(\n    'out',\n    bf16=False,  # why not\n"
        "    per_device_train_batch_size=B * 2,\n    seed=1,  # mine\n)\nprint(args)\n"
    )
    _, after = merged("transformers-python", tmp_path / "t.py", text, setting(**TRAINS))
    assert "    'out',\n    bf16=True,  # why not\n    per_device_train_batch_size=4,\n    seed=1,\n" in after
    assert "gradient_checkpointing=True" in after
    assert after.endswith("# mine\n)\nprint(args)\n")
    compile(after, "t.py", "exec")
    _, after = merged("transformers-python", tmp_path / "s.py", "a = TrainingArguments()\n", setting())
    compile(after, "s.py", "exec")


def test_options_keep_their_place_and_the_choice_comes_last(tmp_path):
    text = "--training.steps=10\n# mine\n--training.local-batch-size 1\nactivation-checkpoint:selective\n"
    _, after = merged("torchtitan", tmp_path / "t.args", text, setting(**TRAINS))
    assert after.startswith("--training.steps=10\n# mine\n--training.local-batch-size=4\n")
    assert after.endswith("\nactivation-checkpoint:full\n")
    assert "selective" not in after


def test_overrides_keep_the_users_own_key_and_its_plus(tmp_path):
    _, after = merged("hydra", tmp_path / "o.txt", "+data.loader.batch_size=2\nseed=1", setting(**TRAINS))
    assert after.startswith("+data.loader.batch_size=4\nseed=1\n")
    assert "\ndata.batch_size" not in after


def test_a_command_keeps_its_script_and_its_lines(tmp_path):
    text = (
        "#!/bin/sh\n# torchrun once\nexec torchrun --standalone \\\n  --nproc_per_node 2 \\\n"
        '  train.py --batch-size "8" "$@"\necho done\n'
    )
    path = tmp_path / "run.sh"
    path.write_text(text)
    path.chmod(0o755)
    start = ScriptStart(words=("train.py",), batch_argument="--batch-size")
    write("torchrun", path, setting("ddp:8", script=start))
    assert path.read_text() == text.replace("_node 2", "_node 8").replace('"8"', "4").replace(
        "exec torchrun", "exec torchrun --nnodes=1"
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_variables_are_exported_as_before_and_keep_their_other_options(tmp_path):
    text = "export PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8\nA=b\n"
    of = setting(allocator="expandable_segments")
    _, after = merged("env", tmp_path / "e.env", text, of)
    assert (
        after == "export PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True\nA=b\n"
    )
    written = write("env", tmp_path / "none.env", setting())
    assert not written.is_changed
    assert not (tmp_path / "none.env").exists()


def test_lightning_finds_the_place_of_the_batch_size_and_changes_classes_with_their_arguments(tmp_path):
    text = (
        "data:\n  class_path: my.Data\n  init_args:\n    batch_size: 1\n    root: .\n"
        "optimizer:\n  class_path: torch.optim.SGD\n  init_args:\n    lr: 0.1\n    momentum: 0.9\n"
    )
    written, after = merged("lightning", tmp_path / "l.yaml", text, setting(optimizer="adamw", **TRAINS))
    assert "    batch_size: 4\n    root: ." in after
    assert "class_path: torch.optim.AdamW\n  init_args:\n    lr: 0.1\n" in after
    assert "momentum" not in after
    assert any("torch.optim.SGD" in note for note in written.notes)


def test_words_that_yaml_1_1_takes_for_false_are_quoted(tmp_path):
    write("accelerate", tmp_path / "a.yaml", setting())
    assert "distributed_type: 'NO'" in (tmp_path / "a.yaml").read_text()


def test_what_no_file_has_a_key_for_is_said_once_for_the_files_together(tmp_path):
    of = setting(**TRAINS, allocator="expandable_segments", memory_format="channels_last")
    alone = write("lightning", tmp_path / "a.yaml", of)
    assert "PYTORCH_ALLOC_CONF" in alone.notes[-1]
    assert "channels_last" in alone.notes[-1]
    assert "checkpoint_blocks" in alone.notes[-1]
    both = write_setting(of, wishes([f"lightning={tmp_path / 'b.yaml'}", f"env={tmp_path / 'b.env'}"]))
    assert "PYTORCH_ALLOC_CONF" not in " ".join(note for each in both for note in each.notes)


WRONG = {
    "transformers-json": ('{"zero_optimization": {}}', "none of its keys"),
    "transformers-python": ("print(1)", "does not call TrainingArguments"),
    "lightning": ("compute_environment: LOCAL_MACHINE", "none of its keys"),
    "accelerate": ("trainer: {}", "none of its keys"),
    "deepspeed": ("[1, 2]", "holds no keys"),
    "torchtitan": ("just words", "line 1"),
    "axolotl": ("a: b: c", "is no YAML in line 1"),
    "llama-factory": ("micro_batch_size: 1", "none of its keys"),
    "hydra": ("import hydra", "line 1"),
    "torchrun": ("python train.py", "does not call torchrun"),
    "env": ("a: b", "line 1"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_another_tools_file_and_a_broken_one_are_refused_in_a_sentence(tmp_path, name):
    text, words = WRONG[name]
    path = tmp_path / "file"
    for content in (text, "{\x00", "a: [1"):
        path.write_text(content)
        with pytest.raises(UsageError) as refused:
            write(name, path, setting())
        assert content != text or words in refused.value.message
        assert "\n" not in refused.value.message
        assert path.read_text() == content


def test_one_wrong_file_leaves_all_as_they_were(tmp_path):
    good, bad = tmp_path / "a.json", tmp_path / "b.yaml"
    chosen = wishes([f"transformers-json={good}", f"accelerate={bad}"])
    bad.write_text("trainer: {}")
    with pytest.raises(UsageError, match="none of its keys"):
        write_setting(setting(), chosen)
    assert not good.exists()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (["trainer=a.json"], "transformers-json, transformers-python, lightning"),
        (["lightning"], "no FORMAT=FILE"),
        (["env=there/is/no/folder"], "cannot write"),
        (["env=."], "it is a folder"),
        (["env=a", "hydra=a"], "named twice"),
    ],
)
def test_wishes_that_cannot_be_are_refused_before_anything_is_searched(tmp_path, monkeypatch, told, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        wishes(told)
    assert not list(tmp_path.iterdir())


def test_a_forward_pass_is_not_written_as_training(tmp_path):
    with pytest.raises(UsageError, match="is about training"):
        write("transformers-json", tmp_path / "a.json", setting(trains=False))
    assert not (tmp_path / "a.json").exists()
