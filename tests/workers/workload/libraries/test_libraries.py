"""Models of libraries: what a reference says of them, what they become, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from autofit_workers.apply.checkpointing import checkpoint_blocks
from autofit_workers.spec.errors import (
    InapplicableError,
    MissingLibraryError,
    UnknownNameError,
    UnsupportedError,
)
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.libraries import LIBRARIES, library_of
from autofit_workers.spec.workloads.references import WorkloadError, parse_reference
from autofit_workers.spec.workloads.tasks import TASKS_BY_NAME
from autofit_workers.trials.run import run
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.of_transformers import configuration_of
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.workload import Workload, resolve

CPU = torch.device("cpu")
TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64}


def needs(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"needs {package}: pip install -c constraints.txt '.[models]'",
    )


def loaded(text, **sample) -> Workload:
    return resolve(parse_reference(text, **sample))


def loss_of(workload: Workload, batch_size: int = 2) -> torch.Tensor:
    model = workload.build_model()
    return workload.loss(model, workload.make_batch(batch_size, CPU))


def test_a_reference_is_read_without_its_library():
    code = (
        "import sys; from autofit_workers.spec.workloads.references import parse_reference;"
        "print([parse_reference(t).target for t in ('timm:resnet18', 'torchvision:vgg16', 'hf:gpt2')]);"
        "print({'timm', 'torchvision', 'transformers', 'torch'} & sys.modules.keys())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer.splitlines() == ["['timm:resnet18', 'torchvision:vgg16', 'hf:gpt2']", "set()"]


@pytest.mark.parametrize("text", ["resnet50", "package.module:model", "file.py:model", "timm:", "timm"])
def test_other_references_are_of_no_library(text):
    assert library_of(text) is None


@pytest.mark.parametrize(
    ("text", "sample", "said"),
    [
        (
            "hf:gpt2",
            {"input_shape": (3, 8, 8), "num_classes": 2},
            "--classes cannot be used with",
        ),
        ("timm:resnet18", {"input_shape": (224,)}, "must be the shape of an image, such as 3x224x224"),
    ],
)
def test_what_means_nothing_to_a_model_is_refused(text, sample, said):
    with pytest.raises(WorkloadError, match=said):
        parse_reference(text, **sample)


def test_a_library_that_is_missing_says_how_to_get_it():
    with pytest.raises(MissingLibraryError, match=r"is a model of nowhere.*pip install nowhere"):
        imported("nowhere", "nowhere:model")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        pytest.param("timm:reznet18", "resnet18", marks=needs("timm")),
        pytest.param("torchvision:resnet81", "resnet18", marks=needs("torchvision")),
        pytest.param("hf:gtp2", "gpt2", marks=needs("transformers")),
    ],
)
def test_an_unknown_name_is_refused_with_those_like_it(text, near):
    with pytest.raises(UnknownNameError, match=f"there is no model {text}: did you mean .*{near}"):
        loaded(text)


@needs("transformers")
def test_nothing_is_downloaded_and_the_message_says_what_can_be_had():
    with pytest.raises(UnknownNameError, match="nothing is downloaded here"):
        loaded("hf:somebody/4711")


@needs("timm")
@pytest.mark.parametrize(
    ("arguments", "shape", "num_classes"),
    [
        ("img_size=64&num_classes=7", (3, 64, 64), 7),
        ("img_size=(64, 96),drop_path_rate=0.1", (3, 64, 96), 1000),
        ("in_chans=1&class_token=false&global_pool=avg", (1, 160, 160), 1000),
    ],
)
def test_a_model_of_timm_is_told_its_arguments(arguments, shape, num_classes):
    workload = loaded(f"timm:test_vit?{arguments}")
    images, labels = workload.make_batch(2, CPU)
    model = workload.build_model()
    assert images.shape[1:] == shape
    assert model(images).shape == (2, num_classes)
    assert labels.max() < num_classes
    assert (model.cls_token is None) == ("class_token=false" in arguments)


@needs("timm")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timm:test_vit?imgsize=64", "takes no imgsize: did you mean img_size"),
        ("timm:test_resnet?img_size=64", "its images may be of any size, which --input says"),
        ("timm:test_resnet?nothing_like_it=1", "it takes .*drop_rate"),
        ("timm:test_vit?embed_dim=7", "does not make test_vit with embed_dim=7: "),
        ("timm:test_vit?img_size=big", "are whole numbers"),
        ("timm:test_vit?pretrained=true", "makes timm load weights"),
        ("timm:test_vit?features_only=true", "trained on logits"),
    ],
)
def test_arguments_that_timm_does_not_take_are_refused_in_a_sentence(text, said):
    with pytest.raises((UnknownNameError, InapplicableError), match=said):
        loaded(text).build_model()


@pytest.mark.parametrize(
    ("text", "sample", "said"),
    [
        ("timm:test_vit?", {}, "is no KEY=VALUE"),
        ("timm:test_vit?img_size", {}, "'img_size' is no KEY=VALUE"),
        ("timm:test_vit?img_size=1&img_size=2", {}, "says img_size twice"),
        ("timm:test_vit?img_size=64", {"input_shape": (3, 64, 64)}, "says img_size, and so does --input"),
        ("timm:test_vit?num_classes=3", {"num_classes": 4}, "says num_classes, and so does --classes"),
    ],
)
def test_arguments_that_cannot_be_read_are_refused_with_the_reference(text, sample, said):
    with pytest.raises(WorkloadError, match=said):
        parse_reference(text, **sample)


@needs("timm")
def test_timm_has_its_own_image_size_and_takes_another():
    small = loaded("timm:test_resnet")
    images, labels = small.make_batch(2, CPU)
    assert images.shape == (2, 3, 160, 160)
    assert loss_of(small).isfinite()
    other = loaded("timm:test_vit", input_shape=(1, 64, 96), num_classes=7)
    images, labels = other.make_batch(3, CPU)
    assert images.shape == (3, 1, 64, 96)
    assert labels.max() < 7
    assert loss_of(other).isfinite()


_OF_BOXES = """
import autofit, torch, torchvision
from torchvision.ops import nms

def boxes(model, batch):
    corners = model(batch).abs()
    kept = nms(corners, corners[:, 0], 0.5)
    from torchvision.models.detection import FasterRCNN
    return corners[kept].mean()

workload = autofit.Workload(
    build_model=lambda: torch.nn.Linear(8, 4),
    make_batch=lambda size, device: torch.randn(size, 8, device=device),
    loss=boxes,
    optimizer="sgd",
)
"""


@needs("torchvision")
def test_a_workload_file_may_import_torchvision_whose_operators_cannot_be_loaded(tmp_path):
    """Installed beside a PyTorch for the CPU, its library for CUDA is not loaded; its shapes suffice."""
    path = tmp_path / "boxes.py"
    path.write_text(_OF_BOXES)
    ref = parse_reference(f"{path}:workload")
    outcome = run(TrialSpec(workload=ref, batch_size=16, probe=Probe.PREDICT))
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert "boxes that suppression keeps" in {a.what for a in Trace.from_json(outcome.trace_json).assumptions}


@needs("torchvision")
def test_torchvision_classifies_images_or_their_pixels():
    images, _ = loaded("torchvision:inception_v3").make_batch(2, CPU)
    assert images.shape == (2, 3, 299, 299), "as its weights want them"
    assert loss_of(loaded("torchvision:squeezenet1_1", input_shape=(3, 64, 64), num_classes=5)).isfinite()
    assert loaded("torchvision:vgg16").make_batch(2, CPU)[1].max() < 1000  # its newest weights name none
    dense = loaded("torchvision:lraspp_mobilenet_v3_large", input_shape=(3, 64, 64))
    _, labels = dense.make_batch(2, CPU)
    assert labels.shape == (2, 64, 64)
    assert loss_of(dense).isfinite()


@needs("torchvision")
def test_what_finds_boxes_is_refused():
    with pytest.raises(UnsupportedError, match="does not classify images or their pixels: write a Workload"):
        loaded("torchvision:fasterrcnn_resnet50_fpn")


@needs("transformers")
@pytest.mark.parametrize(
    ("values", "length", "head"),
    [
        (TINY, 64, "GPT2LMHeadModel"),
        (
            {
                "model_type": "bert",
                "num_hidden_layers": 1,
                "hidden_size": 32,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "vocab_size": 100,
            },
            512,
            "BertForMaskedLM",
        ),
        (
            {
                "model_type": "t5",
                "num_layers": 1,
                "d_model": 32,
                "d_ff": 64,
                "num_heads": 2,
                "vocab_size": 100,
            },
            1024,
            "T5ForConditionalGeneration",
        ),
    ],
)
def test_a_configuration_becomes_the_training_of_its_usual_head(tmp_path, values, length, head):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    workload = with_overrides(loaded(f"hf:{path}"), Knobs(seq_len=16))
    assert type(workload.build_model()).__name__ == head
    assert workload.make_batch(3, CPU)["input_ids"].shape == (3, 16)
    assert loss_of(workload).isfinite()
    assert loaded(f"hf:{path}").make_batch(1, CPU)["input_ids"].shape == (1, length)


@needs("transformers")
@pytest.mark.parametrize("model_type", ["gpt2", "t5"])
def test_blocks_that_run_again_in_backward_see_what_they_saw_before(tmp_path, model_type):
    sizes = {
        "gpt2": TINY,
        "t5": {"num_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 2, "d_kv": 16, "vocab_size": 100},
    }
    (tmp_path / "config.json").write_text(json.dumps({**sizes[model_type], "model_type": model_type}))
    workload = with_overrides(loaded(f"hf:{tmp_path}"), Knobs(seq_len=8))
    torch.manual_seed(0)
    model = workload.build_model().eval()  # without dropout, whose masks would differ between the two
    batch = workload.make_batch(2, CPU)
    gradients = []
    for _ in range(2):
        model.zero_grad()
        workload.loss(model, batch).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        checkpoint_blocks(model)
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@needs("transformers")
def test_a_classifier_of_images_has_the_size_of_its_configuration(tmp_path):
    values = {"model_type": "vit", "image_size": 32, "patch_size": 16, "num_hidden_layers": 1}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(values | sizes))
    workload = loaded(f"hf:{tmp_path}")
    assert workload.make_batch(2, CPU)["pixel_values"].shape == (2, 3, 32, 32)
    assert loss_of(workload).isfinite()
    larger = with_overrides(workload, Knobs(seq_len=64))
    assert larger.make_batch(2, CPU)["pixel_values"].shape == (2, 3, 64, 64)
    assert loss_of(larger).isfinite()


@needs("transformers")
def test_a_relative_path_is_of_the_folder_that_it_was_said_in(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    file = f"hf:{tmp_path}/config.json"
    for text, cwd in (("hf:./config.json", tmp_path), ("hf:config.json", tmp_path)):
        assert parse_reference(text, cwd=cwd).target == file
    assert parse_reference(f"hf:{tmp_path.name}", cwd=tmp_path.parent).target == file, "its folder"
    before = parse_reference(file)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "n_layer": 1}))
    assert parse_reference(file) != before, "another configuration is another workload"


@needs("transformers")
def test_a_folder_named_like_a_model_type_hides_it_not(tmp_path):
    (tmp_path / "gpt2").mkdir()
    assert parse_reference("hf:gpt2", cwd=tmp_path).target == "hf:gpt2"


def test_every_library_has_its_loader():
    assert all(importlib.util.find_spec(library.module) for library in LIBRARIES.values())


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "llama", "_attn_implementation": "kernels-community/flash-attn"},
        {"model_type": "llama", "attn_implementation": "somebody/kernel"},
        {"model_type": "llava", "text_config": {"model_type": "llama", "_attn_implementation": "a/b@main:c"}},
        {"model_type": "llava", "attn_implementation": {"text_config": "a/b"}},
    ],
)
def test_an_attention_kernel_of_a_hub_is_refused(tmp_path, values):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedError, match=r"attention kernel \S+/\S+ of a hub .* --attention"):
        configuration_of(WorkloadRef(kind="library", target=f"hf:{tmp_path / 'config.json'}"))


def test_code_that_a_configuration_names_is_not_imported(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    auto_map = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "of-mine", "auto_map": auto_map}))
    with pytest.raises(UnsupportedError, match="of-mine, which transformers does not have and names code of"):
        configuration_of(WorkloadRef(kind="library", target=f"hf:{tmp_path / 'config.json'}"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "gpt2", "num_hidden_layers": -3}, "num_hidden_layers: -3"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, r"\(gptq\).*--base"),
        ({"model_type": "llama", "hidden_size": "wide"}, "is no configuration that transformers"),
        ({"hidden_size": 8}, "is no configuration that transformers"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused_in_a_sentence(tmp_path, values, said):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedError, match=said):
        configuration_of(WorkloadRef(kind="library", target=f"hf:{tmp_path / 'config.json'}"))


_SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_SMALL_ENCODER_DECODER = {
    "d_model": 16,
    **{f"{part}_{name}": 1 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    **{f"{part}_ffn_dim": 16 for part in ("encoder", "decoder")},
}
_SMALL_SOUND = {**_SMALL, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16}


@pytest.mark.parametrize(
    ("model_type", "architecture", "values", "batch"),
    [
        (
            "whisper",
            "WhisperForConditionalGeneration",
            {**_SMALL_ENCODER_DECODER, "vocab_size": 51_865},
            {"input_features": (2, 80, 3000), "labels": (2, 448)},
        ),
        (
            "speech_to_text",
            "Speech2TextForConditionalGeneration",
            _SMALL_ENCODER_DECODER,
            {"input_features": (2, 3000, 80), "labels": (2, 1024)},
        ),
        (
            "roberta",
            "RobertaForSequenceClassification",
            {**_SMALL, "max_position_embeddings": 514, "pad_token_id": 1},
            {"input_ids": (2, 512), "labels": (2,)},
        ),
        ("bert", "BertForTokenClassification", _SMALL, {"input_ids": (2, 512), "labels": (2, 512)}),
        ("bert", "BertForQuestionAnswering", _SMALL, {"start_positions": (2,), "end_positions": (2,)}),
        ("bert", "BertForMultipleChoice", _SMALL, {"input_ids": (2, 4, 512), "labels": (2,)}),
        ("bert", "BertForPreTraining", _SMALL, {"labels": (2, 512), "next_sentence_label": (2,)}),
        ("electra", "ElectraForPreTraining", _SMALL, {"input_ids": (2, 512), "labels": (2, 512)}),
        ("llama", "LlamaForSequenceClassification", {**_SMALL, "pad_token_id": 0}, {"labels": (2,)}),
        ("wav2vec2", "Wav2Vec2ForCTC", _SMALL_SOUND, {"input_values": (2, 160_000), "labels": (2, 166)}),
        (
            "hubert",
            "HubertForSequenceClassification",
            _SMALL_SOUND,
            {"input_values": (2, 160_000), "labels": (2,)},
        ),
        ("vit", "ViTForImageClassification", _SMALL, {"pixel_values": (2, 3, 224, 224), "labels": (2,)}),
        (
            "clip",
            "CLIPModel",
            {"text_config": _SMALL, "vision_config": _SMALL, "projection_dim": 16},
            {"input_ids": (2, 77), "pixel_values": (2, 3, 224, 224)},
        ),
    ],
)
def test_the_class_that_a_configuration_names_trains_on_a_batch_of_its_own(
    tmp_path, model_type, architecture, values, batch
):
    stated = {"model_type": model_type, "architectures": [architecture], "vocab_size": 64, **values}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    workload = loaded(f"hf:{tmp_path / 'config.json'}")
    model, made = workload.build_model(), workload.make_batch(2, CPU)
    assert type(model).__name__ == architecture
    assert {name: tuple(made[name].shape) for name in batch} == batch
    workload.loss(model, made).backward()


@needs("transformers")
@pytest.mark.parametrize(
    ("model_type", "task", "built"),
    [
        ("bert", "text-classification", "BertForSequenceClassification"),
        ("bert", "text-generation", "BertLMHeadModel"),
        ("wav2vec2", "automatic-speech-recognition", "Wav2Vec2ForCTC"),
        ("whisper", "audio-classification", "WhisperForAudioClassification"),
        ("t5", "text2text-generation", "T5ForConditionalGeneration"),
    ],
)
def test_a_task_overrides_what_a_configuration_names(tmp_path, model_type, task, built):
    stated = {"model_type": model_type, "architectures": ["BertForQuestionAnswering"], "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    workload = loaded(f"hf:{tmp_path / 'config.json'}", task=task)
    with torch.device("meta"):
        assert type(workload.build_model()).__name__ == built


@needs("transformers")
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("object-detection", "has no class for it of the model type bert: choose --task from fill-mask, "),
        ("text-classifcation", "is none of transformers: choose from audio-classification, "),
    ],
)
def test_a_task_that_a_model_cannot_have_is_one_sentence(task, said):
    with pytest.raises((UnsupportedError, WorkloadError), match=said):
        loaded("hf:bert", task=task)


@pytest.mark.parametrize("text", ["resnet50", "timm:resnet18", "torchvision:resnet18", "package.module:net"])
def test_a_task_of_another_library_is_refused(text):
    with pytest.raises(WorkloadError, match=r"--task is for models of transformers, which .* is not"):
        parse_reference(text, task="fill-mask")


def test_each_task_is_of_tables_that_transformers_has():
    transformers = imported("transformers", "hf:bert")
    tables = {table for tables in TASKS_BY_NAME.values() for table in tables}
    assert all(hasattr(transformers, f"MODEL_FOR_{table}_MAPPING") for table in tables)


@pytest.mark.parametrize(
    ("model_type", "architecture", "said"),
    [
        ("bert", "BertForOfMine", "which transformers .* does not have.*: write one of .*BertForMaskedLM"),
        (
            "bark",
            "BarkModel",
            "for which no batch and no loss are known here: write a Workload",
        ),
        ("bert", "BertPreTrainedModel", "for which no batch and no loss are known here: write one of .*Bert"),
    ],
)
def test_a_class_that_cannot_be_trained_as_it_is_is_named(tmp_path, model_type, architecture, said):
    stated = {"model_type": model_type, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    said = f"is a {architecture}, {said}"
    with pytest.raises(UnsupportedError, match=said):
        loaded(f"hf:{tmp_path / 'config.json'}")
