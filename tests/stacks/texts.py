"""A tokenizer of two words, as no stack does without one."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_VOCABULARY = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3}


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(vocab=_VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
