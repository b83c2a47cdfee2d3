"""Bad input, with everything real behind the command line: the sentence, the exit code, the document."""

from __future__ import annotations

import socket

import pytest

MEMORY = ("--gpu-mem", "2G", "--max-batch", "16")


def search(autofit, model: str, *options: str):
    return autofit("tune", "--model", model, *(options or MEMORY), "--json", "--quiet")


@pytest.mark.parametrize(
    ("model", "options", "kind_and_words"),
    [
        ("reznet50", (), ("unknown-model", "Did you mean resnet50")),
        ("nowhere.py:net", (), ("unknown-model", "there is no file")),
        ("no_such_package.module:net", (), ("unknown-model", "there is no module")),
        ("davenet", ("--gpu", "rtx-309"), ("unknown-gpu", "Did you mean rtx-3090")),
        ("davenet", ("--gpu-mem", "16Q"), ("usage", "'16Q' is not a size")),
        ("davenet", ("--gpu-mem", "-1"), ("usage", "'-1' is not a size")),
        ("davenet", ("--gpu-mem", "0"), ("usage", "'0' is less than one byte")),
        ("davenet", ("--gpu-mem", "400M"), ("budget", "nothing is left")),
        ("davenet", ("--gpu-mem", "16"), ("budget", "--gpu-mem 16 is 16 bytes: did you mean 16G?")),
        ("davenet", ("--gpu-mem", "8192"), ("budget", "is 8192 bytes: did you mean 8192M?")),
        ("davenet", ("--gpu-mem", "2G", "--gpu", "t4"), ("usage", "cannot be combined")),
        ("davenet", ("--gpu-mem", "2G", "--conv-algo", "winograd"), ("usage", "is not one of cudnn")),
        ("davenet", ("--gpu-mem", "2G", "--input", "3x8x8"), ("usage", "brings its own input")),
        (
            "davenet",
            ("--device", "cpu", "--gpu", "t4"),
            ("usage", "--gpu cannot be combined with --device cpu"),
        ),
        ("davenet", ("--gpu", "t4", "--parallel", "zero:4"), ("usage", "'zero:4' is not ddp:N")),
    ],
)
def test_wrong_options_exit_with_2_before_anything_is_started(
    autofit, state_dir, model, options, kind_and_words
):
    kind, said = kind_and_words
    finished = search(autofit, model, *options)
    assert finished.code == 2
    assert finished.document["schema"] == "autofit.error/1"
    assert (finished.document["kind"], finished.document["exit_code"]) == (kind, 2)
    assert said in finished.document["message"]
    assert not state_dir.exists()


def test_a_workload_with_one_kind_of_batch_has_no_worst_case(autofit):
    finished = search(autofit, "davenet-audio", *MEMORY, "--worst-case")
    assert (finished.code, finished.document["kind"]) == (2, "usage")
    assert "davenet-audio makes one kind of batch; let its make_batch take" in finished.document["message"]


def test_a_module_that_does_not_import_shows_the_users_traceback(autofit, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import torch\n\nraise RuntimeError('half written')\n")
    finished = search(autofit, f"{file}:net")
    assert finished.code == 4
    assert "half written" in finished.document["message"]
    assert f'File "{file}", line 3, in <module>' in finished.err
    assert "RuntimeError: half written" in finished.err


def test_a_typo_in_an_attribute_is_an_unknown_name(autofit, workload_file):
    finished = search(autofit, f"{workload_file}:helthy")
    assert (finished.code, finished.document["kind"]) == (2, "unknown-model")
    assert finished.document["message"] == f"{workload_file} has no attribute 'helthy'. Did you mean healthy?"
    assert "Traceback" not in finished.err


def test_a_workload_that_is_not_what_it_must_be_exits_with_4(autofit, workload_file):
    finished = search(autofit, f"{workload_file}:vector_loss")
    assert finished.code == 4
    assert (finished.document["schema"], finished.document["exit_code"]) == ("autofit.error/1", 4)
    assert "the loss must be a scalar" in finished.document["message"]


def test_a_workload_whose_batch_is_one_graph_is_answered_at_batch_1_alone(autofit, workload_file):
    graph = f"{workload_file}:ignores_batch_size"
    found = search(autofit, graph)
    assert (found.code, found.document["best"]["batch_size"]) == (0, 1)
    assert found.document["batch_source"] == "one_sample"
    assert any("so no larger one was considered" in note for note in found.document["notes"])
    one, more = (
        autofit("estimate", "--model", graph, "--gpu", "t4", "--batch-size", size, "--json") for size in "12"
    )
    assert one.code == 0
    assert any("all of it counts as one" in note for note in one.document["notes"])
    assert more.code == 4
    assert "ask for a batch of 1 where that is one sample" in more.document["message"]


def test_an_exception_of_the_users_step_shows_its_line(autofit, workload_file):
    finished = search(autofit, f"{workload_file}:raises")
    assert finished.code == 4
    assert "return model.forwrad(batch)" in finished.err
    assert "AttributeError" in finished.err


def test_an_operator_without_shapes_is_named_with_its_line_and_the_advice_to_measure(autofit, workload_file):
    finished = search(autofit, f"{workload_file}:without_shapes")
    assert finished.code == 4
    assert finished.document["kind"] == "unsupported"
    message = finished.document["message"]
    line = 1 + workload_file.read_text().splitlines().index("    return kernel(model(batch)).sum()")
    assert f"mine.py:{line}:own_kernel" in message
    assert "mine.kernel" in message
    assert "measure" in message


def test_storage_that_cannot_be_written_exits_with_5(autofit, workload_file, tmp_path):
    (tmp_path / "file").touch()
    storage = str(tmp_path / "file" / "studies.journal")
    finished = search(autofit, f"{workload_file}:healthy", *MEMORY, "--storage", storage)
    assert finished.code == 5
    assert finished.document["kind"] == "storage"
    assert storage in finished.document["message"]


def test_a_state_directory_that_cannot_be_written_exits_with_5(autofit, workload_file, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "file" / "state"))
    finished = search(autofit, f"{workload_file}:healthy")
    assert finished.code == 5
    assert "AUTOFIT_STATE_DIR" in finished.document["message"]


def test_an_address_that_nobody_answers_at_exits_with_5(autofit):
    with socket.socket() as bound:  # bound and not listening, so that nobody else takes it
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        finished = search(autofit, "davenet", *MEMORY, "--address", address)
    assert finished.code == 5
    assert finished.document["kind"] == "dispatch"
    assert f"nobody answers at {address}" in finished.document["message"]


def test_a_study_is_not_used_with_other_settings_unless_it_is_begun_anew(autofit, workload_file):
    model = f"{workload_file}:healthy"
    first = search(autofit, model, *MEMORY, "--study", "mine")
    assert first.code == 0
    assert first.document["best"]["batch_size"] == 16
    other = (*MEMORY[:2], "--max-batch", "8", "--study", "mine")
    refused = search(autofit, model, *other)
    assert refused.code == 2
    assert refused.document["kind"] == "study-mismatch"
    assert "--fresh" in refused.document["message"]
    anew = search(autofit, model, *other, "--fresh")
    assert (anew.code, anew.document["best"]["batch_size"]) == (0, 8)
