"""Makes up what public training scripts would download: `python tests/bench/script_data.py --root FOLDER`.

FOLDER holds the repositories of `lists/scripts.toml`, each in a folder of its own, as `scripts.py` wants it.
In them and beside them this puts data in the formats that the scripts keep. Names on a hub become local
folders where the scripts start: the real configuration, a tokenizer of made-up text, zeros for weights. What
is there stays.

One file of the environment that runs this is changed: torchvision checks CIFAR by md5 sums, which become
those of the made-up files. It wants NumPy and Pillow, and what a repository's scripts want: torchvision,
timm, transformers, datasets, diffusers.
"""

from __future__ import annotations

import argparse
import gzip
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

# Beside this file: `tests`, the name of the package above it, is one that libraries install, too.
from made_up import hub, hub_sets, models, pictures, vision_sets
from made_up.words import CHARACTERS, WIKITEXT_VOCABULARY, WIKITEXT_WORDS, characters, wikitext

from autofit_workers.workload.libraries.importing import without_missing_operators

_SHAKESPEARE_CHARACTERS = 1_115_394
_GPT2_TOKENS = 50_257
# Where `evaluate` keeps a metric that it downloaded: the folder of this one's name is that of the data set.
_SQUAD_METRIC = f"modules/evaluate_modules/metrics/evaluate-metric--squad/{'0' * 64}"
_ENWIK8_PARTS = 96  # of 1 MiB


@dataclass(frozen=True, slots=True)
class Place:
    """Where a repository lies, and what several share."""

    root: Path
    home: Path

    def common(self, name: str, make: Callable[[Path], None], *targets: Path) -> None:
        """Something made once below the root, and linked to each target."""
        source = self.root / ".made" / name
        once(source, make)
        for target in targets:
            shutil.copytree(source, target, copy_function=linked, dirs_exist_ok=True)

    def models(self, make: Callable[[Path], None], name: str, *folders: Path) -> None:
        self.common(name, make, *(each / name for each in folders))

    @property
    def checkpoints(self) -> Path:
        return self.root / ".cache" / "torch" / "hub" / "checkpoints"

    @property
    def hub_cache(self) -> Path:
        return self.root / ".cache" / "huggingface"


def linked(source: str, target: str) -> None:
    if not Path(target).exists():
        os.link(source, target)


def once(target: Path, make: Callable[[Path], None]) -> None:
    """Makes a file or a folder, whole or not at all; what is there stays."""
    if target.exists():
        return
    part = target.parent / ".part" / target.name
    shutil.rmtree(part.parent, ignore_errors=True)
    part.parent.mkdir(parents=True)
    make(part)
    part.rename(target)
    part.parent.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder of the repositories")
    parser.add_argument("--only", metavar="REGEX", help="the repositories whose names it finds")
    options = parser.parse_args()
    root = options.root.resolve()
    with without_missing_operators():  # torchvision's, beside a PyTorch without CUDA
        for name, make in RECIPES.items():
            home = root / name.rpartition("/")[2]
            if options.only and not re.search(options.only, name):
                continue
            if not home.is_dir():
                print(f"{name}: not there")
                continue
            make(Place(root, home))
            print(f"{name}: ready", flush=True)


# ── pytorch/examples ─────────────────────────────────────────────────────────


def examples(place: Place) -> None:
    home = place.home
    place.common("mnist", vision_sets.mnist, home / "data", home / "mnist_forward_forward" / "data")
    imagenet(place)
    wikitext_2 = home / "word_language_model" / "data" / "wikitext-2"
    others = [wikitext_2 / "valid.txt", wikitext_2 / "test.txt"]
    once(wikitext_2 / "train.txt", partial(wikitext_with, others))
    for part, num in (("train", 200), ("test", 100)):
        pictures_in = home / "super_resolution" / "dataset" / "BSDS300" / "images" / part
        once(pictures_in, partial(numbered_pictures, num=num, size=(481, 321)))
    once(home / "gat" / "cora", cora)
    once(home / "time_sequence_prediction" / "traindata.pt", sine_waves)
    once(home / "fast_neural_style" / "train2014" / "0", partial(numbered_pictures, num=300, size=(640, 480)))
    once_of_torchvision(place, "vgg16", "vgg16-397923af.pth")
    once(home / "distributed" / "minGPT-ddp" / "mingpt" / "input.txt", shakespeare)


def wikitext_with(others: list[Path], path: Path) -> None:
    """The words of two other files, and made-up ones until there are as many as the set has."""
    lines = [line for other in others if other.exists() for line in other.read_text().splitlines()]
    known = {"<eos>", "=", *(word for line in lines for word in line.split())}
    num_words = WIKITEXT_WORDS - sum(len(line.split()) + 1 for line in lines)
    lines += wikitext(num_words, WIKITEXT_VOCABULARY - len(known) + 1)
    path.write_text("\n".join(lines) + "\n")


def numbered_pictures(folder: Path, num: int, size: tuple[int, int]) -> None:
    for number in range(num):
        pictures.write(folder / f"{number:05}.jpg", number, *size)


def cora(folder: Path) -> None:
    """2708 papers of seven subjects: which of 1433 words each has, and which others it cites."""
    random = np.random.default_rng(3)
    folder.mkdir()
    has = random.random((2708, 1433)) < 0.0127
    subjects = random.integers(0, 7, 2708)
    rows = [
        "\t".join([str(number + 1), *np.where(row, "1", "0"), f"subject{subject}"])
        for number, (row, subject) in enumerate(zip(has, subjects, strict=True))
    ]
    (folder / "cora.content").write_text("\n".join(rows) + "\n")
    cites = random.integers(1, 2709, (5429, 2))
    (folder / "cora.cites").write_text("".join(f"{one}\t{other}\n" for one, other in cites))


def sine_waves(path: Path) -> None:
    """What the example's own generator makes."""
    import torch

    random = np.random.default_rng(2)
    points = np.arange(1000) + random.integers(-80, 80, (100, 1))
    torch.save(np.sin(points / 20).astype("float64"), path)


def shakespeare(path: Path) -> None:
    path.write_text(characters(_SHAKESPEARE_CHARACTERS))


# ── karpathy ─────────────────────────────────────────────────────────────────


def nano_gpt(place: Place) -> None:
    once(place.home / "data" / "shakespeare_char" / "input.txt", shakespeare)
    text = (place.home / "data" / "shakespeare_char" / "input.txt").read_text()
    numbers = {each: number for number, each in enumerate(CHARACTERS)}
    ids = np.array([numbers[each] for each in text], dtype=np.uint16)
    cut = int(len(ids) * 0.9)
    meta = {"vocab_size": len(numbers), "itos": dict(enumerate(CHARACTERS)), "stoi": numbers}
    random = np.random.default_rng(4)
    for name, content in {
        "shakespeare_char/train.bin": ids[:cut].tobytes(),
        "shakespeare_char/val.bin": ids[cut:].tobytes(),
        "shakespeare_char/meta.pkl": pickle.dumps(meta),
        "openwebtext/train.bin": random.integers(0, _GPT2_TOKENS, 10**7, dtype=np.uint16).tobytes(),
        "openwebtext/val.bin": random.integers(0, _GPT2_TOKENS, 10**6, dtype=np.uint16).tobytes(),
    }.items():
        once(place.home / "data" / name, partial(write_bytes, content=content))


def write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def min_gpt(place: Place) -> None:
    once(place.home / "projects" / "chargpt" / "input.txt", shakespeare)


# ── of one kind of data ──────────────────────────────────────────────────────


def pytorch_cifar(place: Place) -> None:
    place.common("cifar10", vision_sets.cifar10, place.home / "data")
    vision_sets.accept(place.home / "data" / "cifar-10-batches-py")


def vit_pytorch(place: Place) -> None:
    place.common("cifar100", vision_sets.cifar100, place.home / "data")
    vision_sets.accept(place.home / "data" / "cifar-100-python")


def x_transformers(place: Place) -> None:
    once(place.home / "data" / "enwik8.gz", enwik8)


def enwik8(path: Path) -> None:
    """100 MB of text and more: one megabyte, repeated."""
    part = characters(2**20).encode()
    path.write_bytes(gzip.compress(part, compresslevel=1, mtime=0) * _ENWIK8_PARTS)


def imagenet(place: Place) -> None:
    once(place.root / "imagenet", vision_sets.imagenet)


def pytorch_image_models(place: Place) -> None:
    imagenet(place)
    models.of_timm(place.hub_cache, "seresnext26d_32x4d")


def vision(place: Place) -> None:
    imagenet(place)
    once(place.root / "coco", vision_sets.coco)
    once_of_torchvision(place, "resnet50", "resnet50-0676ba61.pth")


def once_of_torchvision(place: Place, name: str, file: str) -> None:
    once(place.checkpoints / file, partial(models.of_torchvision, name=name))


def lightning(place: Place) -> None:
    below = place.home / "examples"
    place.common(
        "mnist",
        vision_sets.mnist,
        place.home / "Datasets",
        below / "Datasets",
        below / "pytorch" / "basics" / "data",
        below / "pytorch" / "domain_templates" / "data",
    )
    imagenet(place)
    for folder in (below / "pytorch" / "basics", below / "fabric" / "language_model"):
        once(folder / "data" / "wikitext-2.txt", partial(wikitext_with, []))


# ── huggingface ──────────────────────────────────────────────────────────────


def transformers(place: Place) -> None:
    below = place.home / "examples" / "pytorch"
    language, classes, images = (
        below / f"{kind}-{of}"
        for kind, of in (("language", "modeling"), ("text", "classification"), ("image", "classification"))
    )
    answers, tokens, choices = (
        below / each for each in ("question-answering", "token-classification", "multiple-choice")
    )
    summaries, translations = below / "summarization", below / "translation"
    place.models(models.gpt2, "openai-community/gpt2", language)
    place.models(models.roberta, "FacebookAI/roberta-base", language, choices)
    place.models(models.bert, "google-bert/bert-base-cased", classes)
    place.models(models.bert, "google-bert/bert-base-uncased", answers, tokens)
    place.models(models.t5_small, "google-t5/t5-small", summaries, translations)
    place.models(models.vit, "google/vit-base-patch16-224-in21k", images)
    for folder, name, make in (
        (language, "wikitext", hub_sets.wikitext_2),
        (classes, "nyu-mll/glue", hub_sets.mrpc),
        (images, "beans", hub_sets.beans),
        (images, "cifar10", hub_sets.cifar10),
        (answers, "squad", hub_sets.squad),
        (tokens, "conll2003", hub_sets.conll),
        (choices, "swag", hub_sets.swag),
        (summaries, "cnn_dailymail", hub_sets.news),
        (translations, "wmt16", hub_sets.translated),
    ):
        once(folder / name, make)
    for folder, name in (
        (language, "accuracy"),
        (classes, "glue"),
        (images, "accuracy"),
        (tokens, "seqeval"),
        (summaries, "rouge"),
        (translations, "sacrebleu"),
    ):
        once(folder / name, hub.metric)
    once(place.hub_cache / _SQUAD_METRIC, partial(hub.metric, name="squad"))
    once(place.root / ".cache" / "nltk_data" / "tokenizers" / "punkt", Path.mkdir)


def accelerate(place: Place) -> None:
    folder = place.home / "examples"
    place.common("google-bert/bert-base-cased", models.bert, folder / "bert-base-cased")
    once(folder / "nyu-mll" / "glue", hub_sets.mrpc)
    once(folder / "glue", hub.metric)
    once(place.root / "pets", vision_sets.pets)
    models.of_timm(place.hub_cache, "resnet50d")


def diffusers(place: Place) -> None:
    below = place.home / "examples"
    text, booth = below / "text_to_image", below / "dreambooth"
    place.models(models.stable_diffusion, "CompVis/stable-diffusion-v1-4", text, booth)
    once(below / "unconditional_image_generation" / "huggan" / "flowers-102-categories", hub_sets.flowers)
    once(text / "lambdalabs" / "naruto-blip-captions", hub_sets.captions)
    once(booth / "dog", partial(numbered_pictures, num=5, size=(1024, 1024)))


RECIPES: dict[str, Callable[[Place], None]] = {
    "pytorch/examples": examples,
    "karpathy/nanoGPT": nano_gpt,
    "karpathy/minGPT": min_gpt,
    "kuangliu/pytorch-cifar": pytorch_cifar,
    "lucidrains/vit-pytorch": vit_pytorch,
    "lucidrains/x-transformers": x_transformers,
    "Lightning-AI/pytorch-lightning": lightning,
    "huggingface/pytorch-image-models": pytorch_image_models,
    "pytorch/vision": vision,
    "huggingface/accelerate": accelerate,
    "huggingface/transformers": transformers,
    "huggingface/diffusers": diffusers,
}


if __name__ == "__main__":
    main()
