"""Made-up text: words of syllables, drawn as often as those of a language are."""

from __future__ import annotations

from itertools import product

import numpy as np

_SYLLABLES = ["".join(each) for each in product("bcdfghjklmnprstvwxyz", "aeiou")]
# The characters of Shakespeare's works, by which models of single characters are sized.
CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


WIKITEXT_WORDS, WIKITEXT_VOCABULARY = 2_088_628, 33_278  # of WikiText-2, ends of lines among them


class Words:
    """Text of a vocabulary; the n-th word is drawn 1/n as often as the first."""

    def __init__(self, num_words: int, *, seed: int = 0) -> None:
        self.words = [_word(number) for number in range(num_words)]
        self._random = np.random.default_rng(seed)
        shares = 1 / np.arange(1, len(self.words) + 1)
        self._up_to = np.cumsum(shares / shares.sum())

    def drawn(self, num_words: int) -> list[str]:
        places = np.searchsorted(self._up_to, self._random.random(num_words))
        return [self.words[min(place, len(self.words) - 1)] for place in places]

    def sentence(self, num_words: int) -> str:
        return " ".join(self.drawn(num_words)).capitalize() + " ."

    def sentences(self, num: int, mean: float, spread: float, *, least: int = 4, most: int = 48) -> list[str]:
        """Of lengths about a mean."""
        lengths = self._random.normal(mean, spread, num).round().clip(least, most).astype(int)
        return [self.sentence(length) for length in lengths]

    def articles(self, num: int, num_sentences: int) -> list[str]:
        """Of so many sentences on average."""
        lengths = self._random.integers(num_sentences // 2, num_sentences * 3 // 2 + 1, num)
        return [" ".join(self.sentences(length, 22, 8)) for length in lengths]

    def numbers(self, num: int, below: int) -> list[int]:
        return [int(each) for each in self._random.integers(0, below, num)]


def _word(number: int) -> str:
    if number < len(_SYLLABLES):
        return _SYLLABLES[number]
    return _word(number // len(_SYLLABLES) - 1) + _SYLLABLES[number * 37 % len(_SYLLABLES)]


def characters(num_characters: int) -> str:
    """Text in which every character of `CHARACTERS` is."""
    words = Words(8000)
    lines = [CHARACTERS]
    size = len(CHARACTERS)
    while size < num_characters:
        lines.append(words.sentence(9))
        size += len(lines[-1]) + 1
    return "\n".join(lines)[:num_characters]


def wikitext(num_words: int, vocabulary: int) -> list[str]:
    """Lines as WikiText-2 has them: headings and paragraphs between empty lines.

    Args:
        vocabulary: how many different words there are, the equals sign among them.
    """
    words = Words(vocabulary - 1)
    lines = []
    for start in range(0, len(words.words), 60):
        few = words.words[start : start + 60]
        lines += ["", f" = {few[0]} = ", "", f" {' '.join(few)} "]
    num_left = num_words - vocabulary
    while num_left > 0:
        lines += ["", f" = {' '.join(words.drawn(2))} = ", "", f" {' '.join(words.drawn(110))} "]
        num_left -= 114
    return lines
