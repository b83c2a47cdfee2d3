"""Lists the tasks of transformers' models, each with the mapping that has its classes, and its batches."""

from __future__ import annotations

from typing import Any

from autofit_workers.workload.libraries.heads import images, media, scenes, series, sounds, spoken, texts
from autofit_workers.workload.libraries.heads.task import Task, main_input_of, takes

_IMAGES, _FRAMES = ("pixel_values",), ("pixel_values", "pixel_values_videos")
_SOUNDS = ("input_values", "input_features", "inputs")
_SERIES = ("past_values",)
_COMPARES = ("input_ids", "pixel_values")


def _is_encoder_decoder(_model_class: Any, config: Any) -> bool:
    return bool(config.is_encoder_decoder)


def _is_pretrained_on_labels(model_class: Any, config: Any) -> bool:
    seconds = any(takes(model_class, name) for name in texts.SECOND_LABELS)
    return seconds or config.model_type in ("electra", "funnel")


def _reads_texts_alone(model_class: Any, _config: Any) -> bool:
    return not any(takes(model_class, name) for name in ("pixel_values", *_SOUNDS))


def _reads_images(model_class: Any, _config: Any) -> bool:
    return takes(model_class, "pixel_values")


def _places_images(model_class: Any, config: Any) -> bool:
    """Whether a model class expects images at placeholder tokens within a text."""
    reads_both = _reads_images(model_class, config) and takes(model_class, "input_ids")
    return reads_both and (main_input_of(model_class) == "input_ids" or media.has_placeholder(config))


def _reads_videos(_model_class: Any, config: Any) -> bool:
    return hasattr(config, "tubelet_size")


def _hides_patches(model_class: Any, config: Any) -> bool:
    return not takes(model_class, "input_ids") and not _reads_videos(model_class, config)


def _hears(model_class: Any, _config: Any) -> bool:
    return any(takes(model_class, name) for name in _SOUNDS)


def _is_told_the_speaker(model_class: Any, _config: Any) -> bool:
    return takes(model_class, "speaker_embeddings")


def _is_outlined(model_class: Any, _config: Any) -> bool:
    return takes(model_class, "mask_labels")


def _is_cut_out(model_class: Any, _config: Any) -> bool:
    return not takes(model_class, "mask_labels")


def _is_played(_model_class: Any, config: Any) -> bool:
    return hasattr(getattr(config, "decoder", None), "num_codebooks")


# Usual tasks first: a configuration without a class gets the first task that accepts it.
TASKS = (
    Task("SEQ_TO_SEQ_CAUSAL_LM", texts.filled_in(), accepts=_is_encoder_decoder),
    Task("IMAGE_CLASSIFICATION", images.classified(), _IMAGES),
    Task("MASKED_LM", texts.filled_in()),
    Task("CAUSAL_LM", texts.language(), accepts=_reads_texts_alone),
    Task("SPEECH_SEQ_2_SEQ", sounds.written(), _SOUNDS),
    Task("CTC", sounds.spelled(), _SOUNDS),
    Task("AUDIO_CLASSIFICATION", sounds.classified(), _SOUNDS),
    Task("OBJECT_DETECTION", scenes.detected(), _IMAGES),
    Task("SEMANTIC_SEGMENTATION", images.segmented(), _IMAGES),
    *(
        Task(table, batches, _IMAGES, accepts=accepts)
        for table in ("UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION")
        for batches, accepts in ((scenes.outlined(), _is_outlined), (scenes.cut_out(), _is_cut_out))
    ),
    Task("DEPTH_ESTIMATION", images.measured(), _IMAGES),
    Task("IMAGE_TEXT_TO_TEXT", media.with_images(), _COMPARES, accepts=_places_images),
    Task("IMAGE_TEXT_TO_TEXT", media.described(), _IMAGES),
    Task("SPEECH_SEQ_2_SEQ", media.with_sounds(), accepts=_hears),
    Task("MULTIMODAL_LM", media.with_sounds(), accepts=_hears),
    Task("PRETRAINING", media.with_sounds(), accepts=_hears),
    Task("VIDEO_CLASSIFICATION", images.filmed(), _FRAMES),
    Task("ZERO_SHOT_IMAGE_CLASSIFICATION", media.compared(), _COMPARES, asks_for_loss=True),
    Task("TEXT_TO_WAVEFORM", spoken.codes(), accepts=_is_played),
    Task("TEXT_TO_SPECTROGRAM", spoken.frames(), accepts=_is_told_the_speaker),
    Task("VISUAL_QUESTION_ANSWERING", media.asked(), accepts=_reads_images),
    Task("TIME_SERIES_PREDICTION", series.forecast(), _SERIES, ending="ForPrediction"),
    Task("TIME_SERIES_CLASSIFICATION", series.labelled(), _SERIES),
    Task("TIME_SERIES_REGRESSION", series.labelled(), _SERIES),
    Task("PRETRAINING", texts.pretraining(), accepts=_is_pretrained_on_labels),
    Task("PRETRAINING", images.filmed(), _FRAMES, accepts=_reads_videos),
    Task("PRETRAINING", images.masked(), _IMAGES, accepts=_hides_patches),
    Task("MASKED_IMAGE_MODELING", images.masked(), _IMAGES),
    Task("SEQUENCE_CLASSIFICATION", texts.labelled(texts.class_of_each)),
    Task("TOKEN_CLASSIFICATION", texts.labelled(texts.class_of_each_token)),
    Task("QUESTION_ANSWERING", texts.labelled(texts.ends_of_answers)),
    Task("DOCUMENT_QUESTION_ANSWERING", texts.labelled(texts.ends_of_answers)),
    Task("TABLE_QUESTION_ANSWERING", texts.labelled(texts.is_chosen)),
    Task("MULTIPLE_CHOICE", texts.choices()),
    Task("NEXT_SENTENCE_PREDICTION", texts.labelled(texts.is_next)),
    Task("AUDIO_FRAME_CLASSIFICATION", sounds.classified_by_frame(), _SOUNDS),
    Task("AUDIO_XVECTOR", sounds.classified(), _SOUNDS),
)
