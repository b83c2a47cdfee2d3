"""Data sets of the Hugging Face hub: their columns, texts of about their lengths.

Those that are large are cut: scripts tokenize them before the first step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_up import hub, pictures
from made_up.hub import Splits, typed
from made_up.words import WIKITEXT_WORDS, Words, wikitext


def wikitext_2(folder: Path) -> None:
    sizes = {"train": WIKITEXT_WORDS, "validation": 217_646, "test": 245_569}
    splits: Splits = {split: {"text": wikitext(size, 10_000)} for split, size in sizes.items()}
    hub.data_set(folder, splits, configuration="wikitext-2-raw-v1")


def mrpc(folder: Path) -> None:
    words = Words(12_000)
    splits: Splits = {
        split: {
            "sentence1": words.sentences(num, 22, 5, most=45),
            "sentence2": words.sentences(num, 22, 5, most=45),
            "label": words.numbers(num, 2),
            "idx": list(range(num)),
        }
        for split, num in (("train", 3668), ("validation", 408), ("test", 1725))
    }
    label = typed("ClassLabel", names=["not_equivalent", "equivalent"])
    hub.data_set(folder, splits, {"label": label}, configuration="mrpc")


def some_images(num: int, kind: str, size: tuple[int, int]) -> list[dict[str, object]]:
    return [{"bytes": pictures.numbered(number, *size, kind), "path": None} for number in range(num)]


def beans(folder: Path) -> None:
    splits: Splits = {
        split: {"image": some_images(num, "JPEG", (500, 500)), "labels": [n % 3 for n in range(num)]}
        for split, num in (("train", 1034), ("validation", 133), ("test", 128))
    }
    label = typed("ClassLabel", names=["angular_leaf_spot", "bean_rust", "healthy"])
    hub.data_set(folder, splits, {"image": typed("Image"), "labels": label})


def cifar10(folder: Path) -> None:
    splits: Splits = {
        split: {"img": some_images(num, "PNG", (32, 32)), "label": [n % 10 for n in range(num)]}
        for split, num in (("train", 50_000), ("test", 10_000))
    }
    types = {"img": typed("Image"), "label": typed("ClassLabel", num_classes=10)}
    hub.data_set(folder, splits, types, configuration="plain_text")


def flowers(folder: Path) -> None:
    train = {"image": some_images(1000, "JPEG", (667, 500))}
    hub.data_set(folder, {"train": train}, {"image": typed("Image")})


def captions(folder: Path) -> None:
    train: dict[str, list[Any]] = {
        "image": some_images(1221, "JPEG", (1080, 1080)),
        "text": Words(2000).sentences(1221, 10, 3),
    }
    hub.data_set(folder, {"train": train}, {"image": typed("Image")})


def squad(folder: Path) -> None:
    words = Words(12_000)

    def rows(num: int) -> dict[str, list[Any]]:
        contexts = words.articles(num, 5)
        answers = [{"text": [each.split()[0]], "answer_start": [0]} for each in contexts]
        return {
            "id": [f"{number:024x}" for number in range(num)],
            "title": words.sentences(num, 4, 0),
            "context": contexts,
            "question": words.sentences(num, 11, 3),
            "answers": answers,
        }

    hub.data_set(folder, {"train": rows(4000), "validation": rows(400)}, configuration="plain_text")


def conll(folder: Path) -> None:
    words = Words(12_000)
    tags = ["O", *(f"{place}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for place in "BI")]
    splits: dict[str, dict[str, list[Any]]] = {}
    for split, num in (("train", 14_041), ("validation", 3250), ("test", 3453)):
        tokens = [each.split() for each in words.sentences(num, 13, 7, most=60)]
        splits[split] = {
            "id": [str(number) for number in range(num)],
            "tokens": tokens,
            "ner_tags": [words.numbers(len(each), len(tags)) for each in tokens],
        }
    hub.data_set(folder, splits, {"ner_tags": typed("Sequence", typed("ClassLabel", names=tags))})


def swag(folder: Path) -> None:
    words = Words(12_000)

    def rows(num: int) -> dict[str, list[Any]]:
        ends = {f"ending{number}": words.sentences(num, 12, 4) for number in range(4)}
        starts = {"sent1": words.sentences(num, 14, 5), "sent2": words.sentences(num, 3, 1, least=1)}
        return {"video-id": ["0"] * num, **starts, **ends, "label": words.numbers(num, 4)}

    label = typed("ClassLabel", num_classes=4)
    splits: Splits = {"train": rows(4000), "validation": rows(400), "test": rows(400)}
    hub.data_set(folder, splits, {"label": label}, configuration="regular")


def news(folder: Path) -> None:
    words = Words(12_000)
    splits: Splits = {
        split: {
            "article": words.articles(num, 31),
            "highlights": words.articles(num, 3),
            "id": [str(number) for number in range(num)],
        }
        for split, num in (("train", 2000), ("validation", 200), ("test", 200))
    }
    hub.data_set(folder, splits, configuration="3.0.0")


def translated(folder: Path) -> None:
    words = Words(12_000)
    splits: dict[str, dict[str, list[Any]]] = {}
    for split, num in (("train", 4000), ("validation", 400), ("test", 400)):
        texts = zip(words.sentences(num, 23, 12), words.sentences(num, 23, 12), strict=True)
        splits[split] = {"translation": [{"ro": one, "en": other} for one, other in texts]}
    hub.data_set(folder, splits, configuration="ro-en")
