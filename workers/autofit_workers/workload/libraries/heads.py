"""Which class of transformers a configuration is of, what that class is trained for, and its batches.

A class is found in the tables by which transformers chooses one for a configuration (`MODEL_FOR_…_MAPPING`);
each line here is one of them. A batch is what the class takes as its main input, and the labels of the task:

    main input        made from the configuration
    input_ids         tokens, in the layout of the knob `batch_layout`
    pixel_values      an image of the configuration's size
    input_features    frames of a spectrogram, as many as the model has positions for
    input_values      samples of a sound
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autofit_workers.errors import UnsupportedError
from autofit_workers.trace import SampleSize
from autofit_workers.workload.libraries.tasks import TASKS_BY_NAME, names_of
from autofit_workers.workload.libraries.token_batches import Batch, tokens_with_labels, unpackable_tokens

MOST_TOKENS = 1024  # of a sample, unless --seq-len says another number
_TILE = 64  # to which kernels of attention, and nothing else of a step, round lengths
_USUAL_SIDE, _STRIDES = 224, 32
_LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions")
_TARGET_LENGTHS = ("max_target_positions", "max_position_embeddings", "n_positions")
# Their first position is the one after that of padding.
_COUNT_FROM_PADDING = (
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
_HERTZ, _SECONDS = 16_000, 10  # of a sound that a model takes as it is
_MELS, _FRAMES = 80, 3000  # of a spectrogram: 30 seconds
_NUM_CHOICES = 4
_FIRST_STAGE = 320  # samples that the usual first layers make one frame of


def _any_configuration(_config: Any) -> bool:
    return True


def _lengths_of_texts(config: Any) -> SampleSize:
    return _lengths(config.get_text_config(), _LENGTHS)


@dataclass(frozen=True, slots=True)
class Task:
    """What models are trained for.

    Attributes:
        name: as in the names of transformers' classes, `AutoModelFor…`.
        table: of the classes by configuration, `MODEL_FOR_…_MAPPING`.
        make_batch: from batch size, device, configuration and size of a sample, what a class takes.
        size: the size of a sample, and which others there may be, from the configuration.
        main_input: what such a class reads.
        accepts: whether that batch is one for classes of a configuration.
        asks_for_loss: whether a class computes its loss only where it is asked to.
    """

    name: str
    table: str
    make_batch: Callable[..., Batch]
    size: Callable[[Any], SampleSize] = _lengths_of_texts
    main_input: str = "input_ids"
    accepts: Callable[[Any], bool] = _any_configuration
    asks_for_loss: bool = False

    @property
    def is_of_images(self) -> bool:
        """Whether the size of a sample is the side of an image."""
        return self.size is _sides_of_images

    def classes(self, transformers: Any, config: Any) -> tuple[type[nn.Module], ...]:
        """Those of a configuration that read the main input, the usual one first."""
        if not self.accepts(config):
            return ()
        every = _classes_in(_table(transformers, self.table), config)
        return tuple(each for each in every if each.main_input_name == self.main_input)


def _table(transformers: Any, name: str) -> Any:
    """Of the classes by configuration; empty where this release has none."""
    return getattr(transformers, f"MODEL_FOR_{name}_MAPPING", {})


def _classes_in(table: Any, config: Any) -> tuple[Any, ...]:
    """Those that a table of transformers has for a configuration."""
    found = table.get(type(config), ())
    return tuple(found) if isinstance(found, list | tuple) else (found,)


@dataclass(frozen=True, slots=True)
class Head:
    """A class of models and what it is trained for."""

    model_class: type[nn.Module]
    task: Task


def head_of(transformers: Any, config: Any, wanted: str, said: str | None = None) -> Head:
    """The class for a task, else that which a configuration names in `architectures`, else the usual one.

    That is taken where none is named, or one without a head, which has no loss.

    Args:
        wanted: what the user called the model.
        said: the task that the user named.

    Raises:
        UnsupportedError: there is no such class, or none that a batch is known for here.
    """
    named = next(iter(getattr(config, "architectures", None) or ()), None)
    there_are = [
        Head(model_class, task) for task in TASKS for model_class in task.classes(transformers, config)
    ]
    if said is not None:
        there_are = _heads_for(transformers, config, wanted, said, there_are)
    if (head := next((each for each in there_are if each.model_class.__name__ == named), None)) is not None:
        return head
    if said is not None:
        return there_are[0]
    if named is None or _has_no_head(transformers, config, named):
        # A decoder generates, though it could fill in, too.
        fills_in = not getattr(config, "is_decoder", False)
        usual = (each for each in there_are if fills_in or each.task.name != "MaskedLM")
        if (head := next(usual, None)) is not None:
            return head
    raise UnsupportedError(_without_head(transformers, wanted, named, there_are))


def _heads_for(
    transformers: Any, config: Any, wanted: str, said: str, there_are: Sequence[Head]
) -> list[Head]:
    """Those for a task that the user named; raises `UnsupportedError` where there is none."""
    tables = TASKS_BY_NAME[said]
    if found := [head for head in there_are if head.task.table in tables]:
        return found
    others = dict.fromkeys(name for head in there_are for name in names_of(head.task.table))
    instead = f"choose --task from {', '.join(others)}, or leave it out" if others else "leave it out"
    classes = [each.__name__ for table in tables for each in _classes_in(_table(transformers, table), config)]
    if classes:
        raise UnsupportedError(
            f"--task {said}: {wanted} would be a {classes[0]}, for which no batch and no loss are known "
            f"here: {instead}"
        )
    raise UnsupportedError(
        f"--task {said}: transformers {transformers.__version__} has no class for it of the model type "
        f"{config.model_type}: {instead}"
    )


def _has_no_head(transformers: Any, config: Any, named: str) -> bool:
    return named in {each.__name__ for each in _classes_in(transformers.MODEL_MAPPING, config)}


def _without_head(transformers: Any, wanted: str, named: str | None, there_are: Sequence[Head]) -> str:
    others = ", ".join(dict.fromkeys(head.model_class.__name__ for head in there_are))
    instead = (
        f"write one of {others} into its architectures, or " if others and named is not None else ""
    ) + "write a Workload with its own batches and its own loss, and give path/file.py:name"
    if named is None:
        return f"{wanted} is of a kind for which no batch and no loss are known here: {instead}"
    if not hasattr(transformers, named):
        return (
            f"{wanted} is a {named}, which transformers {transformers.__version__} does not have, and code "
            f"that comes with a configuration is not run: {instead}"
        )
    return f"{wanted} is a {named}, for which no batch and no loss are known here: {instead}"


# ── sizes ───────────────────────────────────────────────────────────────────────────────────────


def _lengths_of_targets(config: Any) -> SampleSize:
    """Of the text that is written, where a sound or an image is read."""
    return _lengths(_decoder(config), _TARGET_LENGTHS)


def _decoder(config: Any) -> Any:
    return getattr(config, "decoder", None) or config.get_text_config(decoder=True)


def _lengths(config: Any, names: tuple[str, ...]) -> SampleSize:
    lengths: list[int | None] = [getattr(config, name, None) for name in names]
    longest = min((length for length in lengths if length), default=None)
    if longest is not None and config.model_type in _COUNT_FROM_PADDING:
        longest -= (getattr(config, "pad_token_id", None) or 0) + 1
    own = MOST_TOKENS if longest is None else min(MOST_TOKENS, longest)
    return SampleSize(size=own, multiple=_TILE, longest=longest)


def _sides_of_images(config: Any) -> SampleSize:
    """Sides halve as often as networks' stages, or are cut into patches."""
    side, patch = getattr(config, "image_size", _USUAL_SIDE), getattr(config, "patch_size", 1)
    multiple = math.lcm(_STRIDES, patch) if isinstance(patch, int) else _STRIDES
    return SampleSize(size=side if isinstance(side, int) else None, multiple=multiple)


def _samples_of_sounds(_config: Any) -> SampleSize:
    return SampleSize(size=_HERTZ * _SECONDS, multiple=_FIRST_STAGE)


# ── main inputs ─────────────────────────────────────────────────────────────────────────────────


def _image(batch_size: int, device: torch.device, config: Any, size: int | None) -> torch.Tensor:
    side: Any = size or getattr(config, "image_size", _USUAL_SIDE)
    sides = (side, side) if isinstance(side, int) else tuple(side)
    return torch.randn(batch_size, getattr(config, "num_channels", 3), *sides, device=device)


def _spectrogram(batch_size: int, device: torch.device, config: Any) -> torch.Tensor:
    """Of as many frames as there are positions: the first layers make one of two (Whisper), or of four."""
    if (mels := getattr(config, "num_mel_bins", None)) is not None:
        return torch.randn(batch_size, mels, 2 * config.max_source_positions, device=device)
    num_features: int = getattr(config, "input_feat_per_channel", _MELS)
    return torch.randn(batch_size, _FRAMES, num_features, device=device)


def _classes_of(config: Any, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Labels of classes; of a single one, numbers, as transformers takes them for a regression."""
    if config.num_labels == 1:
        return torch.randn(shape, device=device)
    return torch.randint(config.num_labels, shape, device=device)


# ── batches ─────────────────────────────────────────────────────────────────────────────────────


def _without_labels(*args: Any, **kwargs: Any) -> Batch:
    batch = unpackable_tokens(*args, **kwargs)
    del batch["labels"]
    return batch


def _texts(labels_of: Callable[[Any, int, int, torch.device], Batch]) -> Callable[..., Batch]:
    """Makes batches of texts with labels, of which configuration, batch size, length and device are told."""

    def make_batch(
        batch_size: int, device: torch.device, *, config: Any, size: int, layout: str = "full"
    ) -> Batch:
        batch = _without_labels(batch_size, device, config=config, size=size, layout=layout)
        return {**batch, **labels_of(config, batch_size, size, device)}

    return make_batch


def _class_of_each(config: Any, batch_size: int, _size: int, device: torch.device) -> Batch:
    return {"labels": _classes_of(config, (batch_size,), device)}


def _class_of_each_token(config: Any, batch_size: int, size: int, device: torch.device) -> Batch:
    return {"labels": torch.randint(config.num_labels, (batch_size, size), device=device)}


def _ends_of_answers(_config: Any, batch_size: int, size: int, device: torch.device) -> Batch:
    starts, ends = (torch.randint(size, (batch_size,), device=device) for _ in range(2))
    return {"start_positions": starts, "end_positions": ends}


def _is_next(_config: Any, batch_size: int, _size: int, device: torch.device) -> Batch:
    return {"labels": torch.randint(2, (batch_size,), device=device)}


def _choices(batch_size: int, device: torch.device, *, config: Any, size: int, layout: str = "full") -> Batch:
    batch = _without_labels(batch_size * _NUM_CHOICES, device, config=config, size=size, layout=layout)
    each = {name: tensor.view(batch_size, _NUM_CHOICES, size) for name, tensor in batch.items()}
    return {**each, "labels": torch.randint(_NUM_CHOICES, (batch_size,), device=device)}


def _images(batch_size: int, device: torch.device, *, config: Any, size: int | None) -> Batch:
    return {
        "pixel_values": _image(batch_size, device, config, size),
        "labels": _classes_of(config, (batch_size,), device),
    }


def _segmented_images(batch_size: int, device: torch.device, *, config: Any, size: int | None) -> Batch:
    images = _image(batch_size, device, config, size)
    labels = torch.randint(config.num_labels, (batch_size, *images.shape[-2:]), device=device)
    return {"pixel_values": images, "labels": labels}


def _described_images(batch_size: int, device: torch.device, *, config: Any, size: int) -> Batch:
    """The size is that of the text."""
    labels = torch.randint(_decoder(config).vocab_size, (batch_size, size), device=device)
    encoder = getattr(config, "encoder", config)
    return {"pixel_values": _image(batch_size, device, encoder, None), "labels": labels}


def _written_speech(batch_size: int, device: torch.device, *, config: Any, size: int) -> Batch:
    """The size is that of the text."""
    labels = torch.randint(_decoder(config).vocab_size, (batch_size, size), device=device)
    return {"input_features": _spectrogram(batch_size, device, config), "labels": labels}


def _spelled_speech(batch_size: int, device: torch.device, *, config: Any, size: int) -> Batch:
    """Some three letters for each ten frames of the first layers."""
    num_letters = max(1, size // _FIRST_STAGE // 3)
    labels = torch.randint(1, config.vocab_size, (batch_size, num_letters), device=device)
    return {"input_values": torch.randn(batch_size, size, device=device), "labels": labels}


def _classified_sounds(batch_size: int, device: torch.device, *, config: Any, size: int) -> Batch:
    labels = _classes_of(config, (batch_size,), device)
    mels = getattr(config, "num_mel_bins", None)  # of a model that reads a spectrogram as an image
    shape = (batch_size, size) if mels is None else (batch_size, config.max_length, mels)
    return {"input_values": torch.randn(shape, device=device), "labels": labels}


def _pictures_with_texts(
    batch_size: int, device: torch.device, *, config: Any, size: int, layout: str = "full"
) -> Batch:
    """As many texts as images; each is compared with each. The size is that of the text."""
    batch = _without_labels(batch_size, device, config=config.text_config, size=size, layout=layout)
    return {**batch, "pixel_values": _image(batch_size, device, config.vision_config, None)}


def _pretraining(
    batch_size: int, device: torch.device, *, config: Any, size: int, layout: str = "full"
) -> Batch:
    batch = unpackable_tokens(batch_size, device, config=config, size=size, layout=layout)
    if (second := _SECOND_LABELS[config.model_type]) is None:  # which tokens were replaced
        return {**batch, "labels": torch.randint(2, (batch_size, size), device=device)}
    return {**batch, second: torch.randint(2, (batch_size,), device=device)}


# Of the models that are trained on two losses, the labels of the second one; None: on one, of another kind.
_SECOND_LABELS = {
    "bert": "next_sentence_label",
    "ernie": "next_sentence_label",
    "big_bird": "next_sentence_label",
    "megatron-bert": "next_sentence_label",
    "mobilebert": "next_sentence_label",
    "fnet": "next_sentence_label",
    "albert": "sentence_order_label",
    "electra": None,
    "funnel": None,
}
_COMPARES = ("altclip", "chinese_clip", "clip", "siglip", "siglip2")
_READS_SPECTROGRAMS = ("speech_to_text", "whisper")


def _is_encoder_decoder(config: Any) -> bool:
    return bool(config.is_encoder_decoder)


def _of_type(*types: str) -> Callable[[Any], bool]:
    return lambda config: config.model_type in types


# The usual ones first, as a configuration that names no class is of the first that it can be.
TASKS = (
    Task("Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM", unpackable_tokens, accepts=_is_encoder_decoder),
    Task("ImageClassification", "IMAGE_CLASSIFICATION", _images, _sides_of_images, "pixel_values"),
    Task("MaskedLM", "MASKED_LM", unpackable_tokens),
    Task("CausalLM", "CAUSAL_LM", tokens_with_labels),
    Task(
        "SpeechSeq2Seq",
        "SPEECH_SEQ_2_SEQ",
        _written_speech,
        _lengths_of_targets,
        "input_features",
        accepts=_of_type(*_READS_SPECTROGRAMS),
    ),
    Task("CTC", "CTC", _spelled_speech, _samples_of_sounds, "input_values"),
    Task(
        "AudioClassification",
        "AUDIO_CLASSIFICATION",
        _classified_sounds,
        _samples_of_sounds,
        "input_values",
    ),
    Task(
        "SemanticSegmentation", "SEMANTIC_SEGMENTATION", _segmented_images, _sides_of_images, "pixel_values"
    ),
    Task(
        "ImageTextToText",
        "IMAGE_TEXT_TO_TEXT",
        _described_images,
        _lengths_of_targets,
        "pixel_values",
        accepts=_of_type("vision-encoder-decoder"),
    ),
    Task(
        "ZeroShotImageClassification",
        "ZERO_SHOT_IMAGE_CLASSIFICATION",
        _pictures_with_texts,
        accepts=_of_type(*_COMPARES),
        asks_for_loss=True,
    ),
    Task("PreTraining", "PRETRAINING", _pretraining, accepts=_of_type(*_SECOND_LABELS)),
    Task("SequenceClassification", "SEQUENCE_CLASSIFICATION", _texts(_class_of_each)),
    Task("TokenClassification", "TOKEN_CLASSIFICATION", _texts(_class_of_each_token)),
    Task("QuestionAnswering", "QUESTION_ANSWERING", _texts(_ends_of_answers)),
    Task("MultipleChoice", "MULTIPLE_CHOICE", _choices),
    Task("NextSentencePrediction", "NEXT_SENTENCE_PREDICTION", _texts(_is_next)),
)
