"""Models of a hub as local folders: the real configuration, a tokenizer of made-up text, zeros for weights.

The zeros are a hole in the file: it has the size of the real one and takes no room on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from made_up.words import Words

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.int64: "I64", torch.bool: "BOOL"}
_NUM_LINES = 4000  # that tokenizers are trained on
_COMMIT = "0" * 40


def _library(name: str) -> Any:
    """Imported where it is used: a repository's scripts need not all of them."""
    return import_module(name)


def zeros(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A file of safetensors with zeros in the place of tensors, which may be on the meta device."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    size = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [size, size + num_bytes],
        }
        size += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)


# ── transformers ─────────────────────────────────────────────────────────────


def gpt2(folder: Path) -> None:
    transformers = _library("transformers")
    _of_transformers(folder, transformers.GPT2LMHeadModel, transformers.GPT2Config())
    vocabulary, merges = byte_pairs(2000, ["<|endoftext|>"])
    transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=1024).save_pretrained(folder)


def roberta(folder: Path) -> None:
    transformers = _library("transformers")
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    )
    _of_transformers(folder, transformers.RobertaForMaskedLM, config)
    vocabulary, merges = byte_pairs(2000, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=512)
    tokenizer.save_pretrained(folder)


def bert(folder: Path) -> None:
    """Cased or not, as the folder's name says."""
    transformers = _library("transformers")
    is_cased = not folder.name.endswith("uncased")
    config = transformers.BertConfig(vocab_size=28996 if is_cased else 30522)
    _of_transformers(folder, transformers.BertForMaskedLM, config)
    vocabulary = word_pieces(4000, lowercase=not is_cased)
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=not is_cased, model_max_length=512)
    tokenizer.save_pretrained(folder)


def t5_small(folder: Path) -> None:
    transformers = _library("transformers")
    config = transformers.T5Config(
        vocab_size=32128,
        d_model=512,
        d_kv=64,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        decoder_start_token_id=0,
        n_positions=512,
    )
    _of_transformers(folder, transformers.T5ForConditionalGeneration, config)
    transformers.T5Tokenizer(vocab=unigrams(4000), model_max_length=512).save_pretrained(folder)


def vit(folder: Path) -> None:
    transformers = _library("transformers")
    _of_transformers(folder, transformers.ViTModel, transformers.ViTConfig())
    transformers.ViTImageProcessor().save_pretrained(folder)


def _of_transformers(folder: Path, model_class: Any, config: Any) -> None:
    with torch.device("meta"):
        model = model_class(config)
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    zeros(folder / "model.safetensors", {k: v for k, v in model.state_dict().items() if k not in tied})


# ── tokenizers ───────────────────────────────────────────────────────────────


def _trained(tokenizer: Any, trainer: Any) -> dict[str, Any]:
    """What a tokenizer learned of made-up text, as its file has it."""
    tokenizer.train_from_iterator(Words(3000).sentences(_NUM_LINES, 20, 6), trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def byte_pairs(
    size: int, special: list[str], *, end_of_word: str = ""
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges of a tokenizer of bytes."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(end_of_word_suffix=end_of_word))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not end_of_word)
    tokenizer.pre_tokenizer = bytes_of
    if end_of_word:
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), bytes_of])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix=end_of_word,
        show_progress=False,
    )
    model = _trained(tokenizer, trainer)
    return model["vocab"], [tuple(each) for each in model["merges"]]


def word_pieces(size: int, *, lowercase: bool) -> dict[str, int]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    vocabulary: dict[str, int] = _trained(tokenizer, trainer)["vocab"]
    return vocabulary


def unigrams(size: int) -> list[tuple[str, float]]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    return [(token, score) for token, score in _trained(tokenizer, trainer)["vocab"]]


# ── torchvision and timm ─────────────────────────────────────────────────────


def of_torchvision(path: Path, name: str) -> None:
    """Weights as torchvision keeps them in `TORCH_HOME`."""
    state = _library("torchvision").models.get_model(name).state_dict()
    torch.save({key: torch.zeros_like(value) for key, value in state.items()}, path)


def of_timm(home: Path, name: str) -> None:
    """Weights in the hub's cache, as if they had been downloaded."""
    model = _library("timm").create_model(name)
    folder = home / "hub" / f"models--{model.pretrained_cfg['hf_hub_id'].replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(_COMMIT)
    zeros(folder / "snapshots" / _COMMIT / "model.safetensors", model.state_dict())


# ── diffusers ────────────────────────────────────────────────────────────────


def stable_diffusion(folder: Path) -> None:
    """Version 1.4, of 512×512 pixels."""
    diffusers, pipelines = _library("diffusers"), _library("diffusers.pipelines.stable_diffusion")
    transformers = _library("transformers")
    down = ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    unet = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8, "down_block_types": down}
    _of_diffusers(folder / "unet", diffusers.UNet2DConditionModel, unet)
    vae = {
        "sample_size": 512,
        "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": 2,
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    }
    _of_diffusers(folder / "vae", diffusers.AutoencoderKL, vae)
    diffusers.PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        steps_offset=1,
    ).save_pretrained(folder / "scheduler")
    text = transformers.CLIPTextConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
        projection_dim=768,
        bos_token_id=0,
        eos_token_id=2,
    )
    _of_transformers(folder / "text_encoder", transformers.CLIPTextModel, text)
    vocabulary, merges = byte_pairs(2000, ["<|startoftext|>", "<|endoftext|>"], end_of_word="</w>")
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)
    tokenizer.save_pretrained(folder / "tokenizer")
    seen = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    }
    checker = transformers.CLIPConfig(
        projection_dim=768,
        text_config={"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        vision_config={**seen, "patch_size": 14, "projection_dim": 768},
    )
    _of_transformers(folder / "safety_checker", pipelines.StableDiffusionSafetyChecker, checker)
    transformers.CLIPImageProcessor().save_pretrained(folder / "feature_extractor")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.2.2",
        "feature_extractor": ["transformers", "CLIPImageProcessor"],
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))


def _of_diffusers(folder: Path, model_class: Any, config: dict[str, object]) -> None:
    with torch.device("meta"):
        model = model_class.from_config(config)
    model.save_config(folder)
    zeros(folder / "diffusion_pytorch_model.safetensors", model.state_dict())
