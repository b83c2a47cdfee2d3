"""What classes of transformers of every modality are given, and that they train on it."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from autofit_workers.spec.errors import InapplicableError, UnsupportedError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.workload import Workload, resolve

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="needs transformers: pip install -c constraints.txt '.[models]'",
)

CPU = torch.device("cpu")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TEXT = {"model_type": "llama", "vocab_size": 64, "num_key_value_heads": 2, **SMALL}
IMAGES = {"image_size": 32, "patch_size": 8, **SMALL}
CLIP = {"model_type": "clip_vision_model", "projection_dim": 16, **IMAGES}
LLAVA = {"text_config": TEXT, "vision_config": CLIP, "image_token_index": 63, "vision_feature_layer": -1}
QWEN = {
    "text_config": {
        **TEXT,
        "model_type": "qwen2_vl_text",
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    },
    "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 1},
    "image_token_id": 63,
    "video_token_id": 62,
    "vision_start_token_id": 61,
    "vision_end_token_id": 60,
}
SPEAKS = {
    "text_encoder": {
        "model_type": "t5",
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
    },
    "audio_encoder": {"model_type": "encodec", "num_filters": 2, "hidden_size": 16, "codebook_dim": 16},
    "decoder": {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "ffn_dim": 16,
        "vocab_size": 64,
    },
}
HEARS = {**SMALL, "conv_dim": [8] * 7, "num_conv_pos_embeddings": 16, "vocab_size": 32}
SERIES = {
    "prediction_length": 4,
    "context_length": 16,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


def loaded(folder, model_type, architecture, values, **said) -> Workload:
    stated = {"model_type": model_type, "architectures": [architecture], **values}
    (folder / "config.json").write_text(json.dumps(stated))
    return resolve(parse_reference(f"hf:{folder / 'config.json'}", **said))


@pytest.mark.parametrize(
    ("model_type", "architecture", "values", "batch"),
    [
        (
            "llava",
            "LlavaForConditionalGeneration",
            LLAVA,
            {"input_ids": (2, 1024), "pixel_values": (2, 3, 32, 32), "labels": (2, 1024)},
        ),
        (
            "llava_next",
            "LlavaNextForConditionalGeneration",
            {**LLAVA, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]]},
            {"pixel_values": (2, 5, 3, 32, 32), "image_sizes": (2, 2)},
        ),
        (
            "qwen2_vl",
            "Qwen2VLForConditionalGeneration",
            QWEN,
            {"pixel_values": (2 * 32 * 32, 3 * 2 * 14 * 14), "image_grid_thw": (2, 3)},
        ),
        (
            "vilt",
            "ViltForQuestionAnswering",
            {**IMAGES, "vocab_size": 64, "num_labels": 7},
            {"input_ids": (2, 40), "pixel_values": (2, 3, 32, 32), "labels": (2, 7)},
        ),
        ("layoutlm", "LayoutLMForTokenClassification", {**SMALL, "vocab_size": 64}, {"bbox": (2, 512, 4)}),
        ("tapas", "TapasForQuestionAnswering", {**SMALL, "vocab_size": 64}, {"token_type_ids": (2, 1024, 7)}),
        (
            "yolos",
            "YolosForObjectDetection",
            {**IMAGES, "image_size": [32, 48]},
            {"pixel_values": (2, 3, 32, 48)},
        ),
        (
            "videomae",
            "VideoMAEForVideoClassification",
            {**IMAGES, "num_frames": 4},
            {"pixel_values": (2, 4, 3, 32, 32)},
        ),
        (
            "videomae",
            "VideoMAEForPreTraining",
            {**IMAGES, "num_frames": 4, "decoder_num_hidden_layers": 1},
            {"bool_masked_pos": (2, 32)},
        ),
        ("deit", "DeiTForMaskedImageModeling", {**IMAGES, "encoder_stride": 8}, {"bool_masked_pos": (2, 16)}),
        (
            "musicgen",
            "MusicgenForConditionalGeneration",
            SPEAKS,
            {"input_ids": (2, 1024), "labels": (2, 500, 4)},
        ),
        ("wav2vec2", "Wav2Vec2ForAudioFrameClassification", HEARS, {"labels": (2, 499, 2)}),
        ("informer", "InformerForPrediction", SERIES, {"past_values": (2, 23), "future_values": (2, 4)}),
        (
            "patchtst",
            "PatchTSTForRegression",
            {"num_targets": 3, "d_model": 16, "num_hidden_layers": 1},
            {"target_values": (2, 3)},
        ),
    ],
)
def test_a_class_of_any_modality_trains_on_a_batch_of_its_own(
    tmp_path, model_type, architecture, values, batch
):
    workload = loaded(tmp_path, model_type, architecture, values)
    model, made = workload.build_model(), workload.make_batch(2, CPU)
    assert type(model).__name__ == architecture
    assert {name: tuple(made[name].shape) for name in batch} == batch
    workload.loss(model, made).backward()


def test_each_image_has_the_objects_that_are_on_it(tmp_path):
    workload = loaded(tmp_path, "yolos", "YolosForObjectDetection", {**IMAGES, "image_size": [32, 48]})
    first, second = workload.make_batch(2, CPU)["labels"]
    assert {name: tuple(tensor.shape) for name, tensor in first.items()} == {
        "class_labels": (8,),
        "boxes": (8, 4),
    }
    assert not torch.equal(first["boxes"], second["boxes"])


def test_an_image_takes_as_many_tokens_as_the_class_makes_of_it(tmp_path):
    workload = loaded(tmp_path, "llava", "LlavaForConditionalGeneration", LLAVA)
    batch = workload.make_batch(2, CPU)
    placeholders = batch["input_ids"] == 63
    assert placeholders.sum(1).tolist() == [16, 16]
    assert (batch["labels"][placeholders] == -100).all()
    assert (batch["labels"][~placeholders] >= 0).all()
    shorter = with_overrides(workload, Knobs(seq_len=64))
    assert shorter.make_batch(2, CPU)["input_ids"].shape == (2, 64)
    with pytest.raises(InapplicableError, match=r"takes 16 tokens .* a longer --seq-len"):
        with_overrides(workload, Knobs(seq_len=16)).make_batch(2, CPU)


def test_images_have_the_size_that_is_said(tmp_path):
    sized = loaded(tmp_path, "qwen2_vl", "Qwen2VLForConditionalGeneration", QWEN, input_shape=(3, 56, 112))
    batch = sized.make_batch(2, CPU)
    assert batch["image_grid_thw"].tolist() == [[1, 4, 8], [1, 4, 8]]
    assert (batch["input_ids"][0] == 63).sum() == 4 * 8 / 4
    sized.loss(sized.build_model(), batch).backward()
    sized = loaded(tmp_path, "vit", "ViTForImageClassification", IMAGES, input_shape=(3, 16, 48))
    sized.loss(sized.build_model(), sized.make_batch(2, CPU)).backward()


REFUSED = [
    ("bert", "BertForMaskedLM", SMALL, {"input_shape": (3, 8, 8)}, "reads no images: leave out --input"),
    ("vit", "ViTForImageClassification", IMAGES, {"input_shape": (1, 8, 8)}, "--input 3x8x8"),
    ("levit", "LevitForImageClassificationWithTeacher", {}, {}, "computes no loss .it takes no labels"),
    (
        "instructblip",
        "InstructBlipForConditionalGeneration",
        {"image_token_index": 5},
        {},
        "needs qformer_input_ids",
    ),
    ("blip-2", "Blip2ForConditionalGeneration", {"image_token_index": None}, {}, "add image_token_id"),
    ("wav2vec2-bert", "Wav2Vec2BertForCTC", SMALL, {}, "add vocab_size to it"),
    ("timesfm", "TimesFmModelForPrediction", SMALL, {}, "no batch can be made here"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=[each[1] for each in REFUSED])
def test_what_a_class_needs_and_nobody_says_is_one_sentence(tmp_path, refused):
    *named, said, sentence = refused
    with pytest.raises(UnsupportedError, match=sentence):
        loaded(tmp_path, *named, **said)


def test_a_class_that_says_that_it_has_no_training_computes_no_loss(tmp_path):
    backbone = {
        "model_type": "dinov2",
        **IMAGES,
        "num_hidden_layers": 4,
        "out_indices": [1, 2, 3, 4],
        "reshape_hidden_states": False,
    }
    neck = {
        "neck_hidden_sizes": [8] * 4,
        "reassemble_hidden_size": 16,
        "fusion_hidden_size": 8,
        "head_hidden_size": 8,
    }
    values = {"backbone_config": backbone, "patch_size": 8, **neck}
    workload = loaded(tmp_path, "depth_anything", "DepthAnythingForDepthEstimation", values)
    with pytest.raises(UnsupportedError, match=r"computes no loss .NotImplementedError"):
        workload.loss(workload.build_model(), workload.make_batch(1, CPU))
