"""What the stacks train: `python materials.py KIND FOLDER`, in the stack's environment.

Models of a few layers with random weights, tokenizers of a few words, texts and pictures: nothing is
downloaded. Weights, widths and texts are small, vocabularies and resolutions are not all.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import torch

from autofit_workers.workload.libraries.importing import without_missing_operators

WIDTH, FEED_FORWARD, NUM_LAYERS, NUM_HEADS, NUM_KEY_VALUE_HEADS = 256, 704, 2, 4, 2
NUM_TOKENS = 4096
NUM_TOKENS_OF_LLAMA3 = 128_256  # as its tokenizer numbers its special tokens


def texts(folder: Path) -> None:
    """Instructions with answers, all of one length."""
    rows = [{"instruction": "a " * 100, "input": "", "output": "a " * 200}] * 64
    (folder / "texts.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps({"texts": {"file_name": "texts.json"}}))


@without_missing_operators()
def llama(folder: Path) -> None:
    """A model and a tokenizer as transformers saves them."""
    from texts import tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KEY_VALUE_HEADS,
        vocab_size=NUM_TOKENS,
        max_position_embeddings=1024,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    texts(folder)


def llama3_of_meta(folder: Path) -> None:
    """Weights by transformers' names, and a tokenizer of single bytes in tiktoken's form."""
    from safetensors.torch import save_file

    model = folder / "model"
    model.mkdir()
    of_heads = WIDTH // NUM_HEADS * NUM_KEY_VALUE_HEADS
    shapes = {"model.embed_tokens": (NUM_TOKENS_OF_LLAMA3, WIDTH), "lm_head": (NUM_TOKENS_OF_LLAMA3, WIDTH)}
    shapes["model.norm"] = (WIDTH,)
    for layer in range(NUM_LAYERS):
        parts = {
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (of_heads, WIDTH),
            "self_attn.v_proj": (of_heads, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (FEED_FORWARD, WIDTH),
            "mlp.up_proj": (FEED_FORWARD, WIDTH),
            "mlp.down_proj": (WIDTH, FEED_FORWARD),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    weights = {f"{name}.weight": torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = {
        "hidden_size": WIDTH,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KEY_VALUE_HEADS,
        "vocab_size": NUM_TOKENS_OF_LLAMA3,
    }
    (model / "config.json").write_text(json.dumps(config))
    words = (f"{base64.b64encode(bytes([number])).decode()} {number}" for number in range(256))
    (model / "tokenizer.model").write_text("\n".join(words))
    texts(folder)


@without_missing_operators()
def pipelines(folder: Path) -> None:
    """Stable Diffusion and FLUX as diffusers saves them, and pictures with captions."""
    import diffusers
    import transformers
    from PIL import Image

    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]

    def clip_tokenizer() -> object:
        vocabulary = {word: number for number, word in enumerate(words)}
        return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)

    def clip() -> torch.nn.Module:
        end = len(words) - 1
        config = transformers.CLIPTextConfig(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            projection_dim=32,
            bos_token_id=end - 1,
            eos_token_id=end,
            pad_token_id=end,
        )
        return transformers.CLIPTextModel(config)

    def autoencoder() -> torch.nn.Module:
        return diffusers.AutoencoderKL(
            block_out_channels=(32, 64),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=8,
            sample_size=64,
            shift_factor=0.1,
        )

    unet = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        layers_per_block=1,
    )
    diffusers.StableDiffusionPipeline(
        autoencoder(), clip(), clip_tokenizer(), unet, diffusers.DDPMScheduler(), None, None, None, False
    ).save_pretrained(folder / "stable-diffusion")
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
        guidance_embeds=True,
    )
    t5 = transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    )
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("▁a", -2.0)]
    t5_tokenizer = transformers.T5TokenizerFast(vocab=pieces, extra_ids=0)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    diffusers.FluxPipeline(
        scheduler, autoencoder(), clip(), clip_tokenizer(), t5, t5_tokenizer, transformer
    ).save_pretrained(folder / "flux")
    captions = []
    for kind in ("captioned", "pictures"):
        (folder / kind).mkdir()
        for number in range(16):
            Image.new("RGB", (300, 280), (number, number, number)).save(folder / kind / f"{number}.png")
            captions.append({"file_name": f"{number}.png", "text": "a picture"})
    lines = "\n".join(map(json.dumps, captions[:16]))
    (folder / "captioned" / "metadata.jsonl").write_text(lines)


def of_torchtitan(folder: Path) -> None:
    """Tokenizers and texts where its configurations look for them: its tests' own, Llama 3.1's, C4."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel(vocab={"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for place in ("tests/assets/tokenizer", "assets/hf/Llama-3.1-8B"):
        (folder / place).mkdir(parents=True)
        words.save(str(folder / place / "tokenizer.json"))
        (folder / place / "tokenizer_config.json").write_text(json.dumps(named))
    lines = "\n".join([json.dumps({"text": "a " * 1000})] * 512)
    for place in ("tests/assets/c4_test", "allenai/c4"):
        (folder / place).mkdir(parents=True)
        (folder / place / "data.json").write_text(lines)
    # The name of a part of C4, as its card on the hub has it.
    (folder / "allenai/c4/README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files: data.json\n---\n"
    )


KINDS = {
    "llama": llama,
    "llama3-of-meta": llama3_of_meta,
    "pipelines": pipelines,
    "torchtitan": of_torchtitan,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
