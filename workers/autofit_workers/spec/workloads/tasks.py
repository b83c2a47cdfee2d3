"""Tasks that `--task` names, and transformers' mappings with the model classes for each.

A mapping is given by the part of its name between `MODEL_FOR_` and `_MAPPING` in transformers'
models/auto/modeling_auto.py. The task names are those of its pipelines/__init__.py, and for tasks without a
pipeline those of Optimum's exporters/tasks.py.
"""

from __future__ import annotations

TASKS_BY_NAME: dict[str, tuple[str, ...]] = {
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "audio-frame-classification": ("AUDIO_FRAME_CLASSIFICATION",),
    "audio-xvector": ("AUDIO_XVECTOR",),
    "automatic-speech-recognition": ("CTC", "SPEECH_SEQ_2_SEQ"),
    "depth-estimation": ("DEPTH_ESTIMATION",),
    "document-question-answering": ("DOCUMENT_QUESTION_ANSWERING",),
    "fill-mask": ("MASKED_LM",),
    "image-classification": ("IMAGE_CLASSIFICATION",),
    "image-segmentation": (
        "SEMANTIC_SEGMENTATION",
        "UNIVERSAL_SEGMENTATION",
        "INSTANCE_SEGMENTATION",
        "IMAGE_SEGMENTATION",
    ),
    "image-text-to-text": ("IMAGE_TEXT_TO_TEXT",),
    "image-to-image": ("IMAGE_TO_IMAGE",),
    "masked-im": ("MASKED_IMAGE_MODELING",),
    "multiple-choice": ("MULTIPLE_CHOICE",),
    "next-sentence-prediction": ("NEXT_SENTENCE_PREDICTION",),
    "object-detection": ("OBJECT_DETECTION",),
    "pretraining": ("PRETRAINING",),
    "question-answering": ("QUESTION_ANSWERING",),
    "table-question-answering": ("TABLE_QUESTION_ANSWERING",),
    "text-classification": ("SEQUENCE_CLASSIFICATION",),
    "text-generation": ("CAUSAL_LM",),
    "text-to-audio": ("TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM"),
    "text2text-generation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "time-series-classification": ("TIME_SERIES_CLASSIFICATION",),
    "time-series-forecasting": ("TIME_SERIES_PREDICTION",),
    "time-series-regression": ("TIME_SERIES_REGRESSION",),
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "video-classification": ("VIDEO_CLASSIFICATION",),
    "visual-question-answering": ("VISUAL_QUESTION_ANSWERING",),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "zero-shot-object-detection": ("ZERO_SHOT_OBJECT_DETECTION",),
}

TASK_NAMES = tuple(TASKS_BY_NAME)


def names_of(table: str) -> tuple[str, ...]:
    """Names of the tasks whose model classes transformers lists in one of its tables.

    Args:
        table: the part in braces of the table's name `MODEL_FOR_{table}_MAPPING`.
    """
    return tuple(name for name, tables in TASKS_BY_NAME.items() if table in tables)
