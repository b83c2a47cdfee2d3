"""Matches the names that users give cards, and gives advice on devices outside the catalogue.

GTX 1080 Ti, gtx1080ti, 1080 Ti          gtx-1080-ti
A100-SXM4-80GB, A100 PCIe 80GB           a100-80g
rtx 5000                                 two cards: both are returned
mps, xpu, rx-7900-xtx                    no card of the catalogue: a sentence of advice
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from autofit_workers.spec.vendors import Vendor

# Words that sellers put before all of their names; boards and virtual machines name AMD's cards longer.
_OF_SELLERS = frozenset(word for vendor in Vendor for word in vendor.facts.seller_words)
# Words for the build of a card, which its memory seldom depends on.
_OF_BOARD = re.compile(r"pcie|sxm\d?|hbm\d\w?|lp|sff|gpu")
_OF_SERIES = ("quadro", "rtx", "gtx")  # before a number that identifies the card
_MEMORY = re.compile(r"(\d+)gi?b")

_OWN_MEMORY = "give the memory that it reports, as in --gpu-mem 8000M, or name a card to compare with"
# Patterns of names, without spaces, of devices outside the catalogue, with advice on each.
_ELSEWHERE = {
    r"mps|metal|apple.*|m[1-5](pro|max|ultra)?": (
        "Apple's GPUs (mps) share the machine's memory and have an allocator of their own, so nothing "
        "is predicted of them: name a card to see what a step takes on CUDA, or use tune --device cpu there"
    ),
    r"xpu|intel.*|arc.*|a(3[1578]|5[58]|7[357])0m?|b5[78]0|flex\d+|max1[15]\d\d": (
        "of Intel's GPUs (xpu) neither the context nor what oneDNN takes is known, while tensors are as on "
        "CUDA: give its memory, as in --gpu-mem 16G, and leave room, or name a card to compare with"
    ),
    r"(pro)?(rx|r9|vega|navi).*|(pro)?w\d{4}x?|radeon.*|gfx1\w+|ryzen.*|strix.*": (
        "of AMD's Radeon cards neither the context nor what ROCm's libraries take is known, while tensors "
        "are as on Instinct cards: name one of those (mi210, mi300x), and hold it against your card's memory"
    ),
    r"(jetson)?.*(orin|xavier|nano|thor)\w*|jetson.*|dgxspark|gb10": (
        "Jetsons and other boards share one memory between host and GPU, and what is free of it is not "
        "known: give that, as in --gpu-mem 6G"
    ),
    r"(tpu|gaudi|hpu|npu|trainium|trn|inferentia|inf|ascend|mlu|musa)\w*": (
        "only cards that PyTorch drives by CUDA or ROCm are predicted: name one of them"
    ),
    r"cpu": "the CPU is no card: use tune --device cpu, with --gpu-mem for the memory that it may use",
    r"(gtx)?[6-9]\d\d(ti|m|mx)?|titan(black|z)|gtxtitan.*|titanx?maxwell|(quadro)?[km]\d{2,4}m?": (
        f"it has no cards before Pascal: {_OWN_MEMORY}"
    ),
}
_IN_SLICES = "-mig-"
_MOST_NAMES = 4096  # in a cache


class Named(Protocol):
    """Interface of a card that has a key, a name, and the memory it is sold with, as `Gpu` has."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def sold_gb(self) -> int: ...


_Card = TypeVar("_Card", bound=Named)


def matching(name: str, cards: Iterable[_Card]) -> list[_Card]:
    """Cards that `name` may mean, in their given order; if some match exactly, only those.

    Case, spaces, hyphens and the seller's words (NVIDIA, GeForce, AMD Instinct, …) do not matter. If none
    matches exactly, `name` may be the beginning of a card's name, and words for the board (SXM4, PCIe) or
    series (GTX, RTX) do not matter either.
    """
    cards = list(cards)
    plain = "".join(_words(name))
    full = [card for card in cards if any(plain == "".join(words) for words in _names(card))]
    if full or not plain:
        return full
    loose = "".join(_without_board(_words(name)))
    found = [
        card
        for card in cards
        if _IN_SLICES not in card.key
        and (_begins(plain, _names(card)) or (loose and _begins(loose, _looser_names(card))))
    ]
    # Of a card and its editions, such as Max-Q, the card itself.
    return [card for card in found if all(each.key.startswith(card.key) for each in found)] or found


def known_elsewhere(name: str) -> str | None:
    """Advice for a known device outside the catalogue, such as a TPU or Jetson; None for other names."""
    wanted = "".join(_words(name))
    return next((words for like, words in _ELSEWHERE.items() if re.fullmatch(like, wanted)), None)


def _begins(wanted: str, names: Iterable[Sequence[str]]) -> bool:
    """Whether `wanted` is the beginning of a name, and ends where one of the name's words ends.

    Args:
        wanted: words without spaces between them.
        names: names as sequences of words.
    """
    return any(wanted in itertools.accumulate(words) for words in names)


def _names(card: Named) -> Iterator[tuple[str, ...]]:
    """Yields the words of a card's key, then the words of its name."""
    yield _words(card.key)
    yield _words(card.name)


def _looser_names(card: Named) -> Iterator[tuple[str, ...]]:
    """Yields a card's key and name, as words, without words for its board and series.

    Each also comes with the memory that the card is sold with at its end. Nothing is yielded for a card whose
    key has a word for its board, which distinguishes it from other cards.
    """
    if _without_board(_words(card.key)) != _words(card.key):
        return
    for words in map(_without_board, _names(card)):
        num_before = next((place for place, word in enumerate(words) if word not in _OF_SERIES), 0)
        for start in range(num_before + 1):
            yield words[start:]
            yield (*words[start:], f"{card.sold_gb}g")


def _without_board(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for word in words if not _OF_BOARD.fullmatch(word))


@functools.lru_cache(maxsize=_MOST_NAMES)  # of each card, in every search for a name
def _words(name: str) -> tuple[str, ...]:
    words = (word for word in re.findall(r"[a-z0-9.]+", name.casefold()) if word not in _OF_SELLERS)
    return tuple(_MEMORY.sub(r"\1g", word) for word in words)
