"""Batches of sounds for models of transformers, as samples or spectrograms, with labels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.workload.libraries.heads import sizes
from autofit_workers.workload.libraries.heads.features import frames_of
from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head, main_input_of
from autofit_workers.workload.libraries.heads.texts import classes_of
from autofit_workers.workload.libraries.importing import imported

_FRAMES_A_SECOND = 100
_MOST_FRAMES = 3000  # of a spectrogram: 30 seconds

_ENCODERS = ("encoder", "encoder_config", "audio_config", "audio_encoder", "sound_config")
_STACKED = 2  # frames that `feature_projection_input_dim` values hold side by side


def spelled() -> Callable[[Head], Batches]:
    """Function that makes batches of speech, with its letters as labels."""
    return functools.partial(_of_sounds, _spelled)


def classified() -> Callable[[Head], Batches]:
    """Function that makes batches of sounds, with one class label for each."""
    return functools.partial(_of_sounds, _classified)


def classified_by_frame() -> Callable[[Head], Batches]:
    """Function that makes batches of sounds, with the speakers of each frame as labels."""
    return _by_frame


def written() -> Callable[[Head], Batches]:
    """Function that makes batches of speech, with its text as labels; sample size is the text's length."""
    return lambda head: Batches(functools.partial(_written, head=head), sizes.of_targets(head.config))


def encoder_of(config: Any) -> Any:
    """Configuration of a model's part that reads sounds; the whole configuration if there is none."""
    parts = (getattr(config, name, None) for name in _ENCODERS)
    return next((part for part in parts if part is not None and not isinstance(part, str)), config)


def spectrogram(config: Any, batch_size: int, device: torch.device, num_frames: int | None) -> torch.Tensor:
    """Random spectrograms of the shape that an encoder reads.

    An encoder like Whisper's reads two frames for each of its positions, and frequencies come first.

    Args:
        config: the encoder's configuration.
        num_frames: number of frames for other encoders; None for 30 seconds.
    """
    if (positions := _positions(config)) is not None:
        return torch.randn(batch_size, config.num_mel_bins, 2 * positions, device=device)
    if (width := getattr(config, "feature_projection_input_dim", None)) is not None:
        return torch.randn(batch_size, (num_frames or _MOST_FRAMES) // _STACKED, width, device=device)
    widths: list[Any] = [
        getattr(config, name, None) for name in ("num_mel_bins", "input_feat_per_channel", "input_dim")
    ]
    width = next((each for each in widths if each), 80)
    return torch.randn(batch_size, num_frames or _MOST_FRAMES, width, device=device)


def _positions(config: Any) -> int | None:
    if getattr(config, "num_mel_bins", None) is None:
        return None
    positions: int | None = getattr(config, "max_source_positions", None)
    return positions


def heard(head: Head, batch_size: int, device: torch.device, size: int | None = None) -> Batch:
    """Random sounds of a batch, by the name of the model class's argument for sounds.

    They are waveforms or spectrograms, whichever the class reads.

    Args:
        head: model class with its configuration.
        batch_size: number of sounds.
        device: device of the tensors.
        size: length of each sound in audio samples; None for 10 seconds of a waveform, or 30 of a
            spectrogram.
    """
    encoder, name = encoder_of(head.config), _read_by(head)
    if name == "input_features":
        num_frames = None if size is None else size * _FRAMES_A_SECOND // sizes.HERTZ
        frames = spectrogram(encoder, batch_size, device, num_frames)
        if not head.takes("attention_mask") or head.takes("input_ids") or _positions(encoder) is not None:
            return {name: frames}
        return {
            name: frames,
            "attention_mask": sizes.read_by_class(torch.ones(frames.shape[:2], dtype=torch.int64), device),
        }
    if _is_read_as_image(encoder):
        return {name: torch.randn(batch_size, encoder.max_length, encoder.num_mel_bins, device=device)}
    return {name: torch.randn(batch_size, size or sizes.HERTZ * sizes.SECONDS, device=device)}


def _read_by(head: Head) -> str:
    """Name of the model class's argument for sound: `input_features` or `input_values`.

    A class that takes both, for any encoder, gets the argument of its configured encoder.
    """
    named = [each for each in ("input_features", "input_values") if head.takes(each)]
    if len(named) == 1:
        return named[0]
    transformers: Any = imported("transformers", head.wanted)
    encoder = transformers.MODEL_MAPPING.get(type(encoder_of(head.config)), head.model_class)
    return main_input_of(encoder)


def _of_sounds(make: Callable[..., Batch], head: Head) -> Batches:
    """Batches of sounds, of any size unless the configuration has a fixed one."""
    make = functools.partial(make, head=head)
    if _has_one_size(head):
        return Batches(functools.partial(_of_one_size, make))
    return Batches(make, sizes.of_sounds())


def _has_one_size(head: Head) -> bool:
    encoder = encoder_of(head.config)
    return _positions(encoder) is not None or _is_read_as_image(encoder)


def _is_read_as_image(config: Any) -> bool:
    return hasattr(config, "max_length") and hasattr(config, "num_mel_bins")


def _of_one_size(make: Callable[..., Batch], batch_size: int, device: torch.device) -> Batch:
    return make(batch_size, device, size=sizes.HERTZ * sizes.SECONDS)


def _spelled(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    num_letters = max(1, size // sizes.FIRST_STAGE // 3)
    vocabulary = getattr(head.config, "vocab_size", None)
    if vocabulary is None:
        raise UnsupportedError(
            f"a {head.wanted} spells, and its configuration does not say how many letters there are: add "
            "vocab_size to it"
        )
    # Made on the CPU, as a collator does, because the loss reads the labels' lengths.
    labels = torch.randint(1, vocabulary, (batch_size, num_letters)).to(device)
    return {**heard(head, batch_size, device, size), "labels": labels}


def _classified(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    labels = classes_of(head.config, (batch_size,), device)
    return {**heard(head, batch_size, device, size), "labels": labels}


def _by_frame(head: Head) -> Batches:
    def make(batch_size: int, device: torch.device, *, size: int) -> Batch:
        num_frames = frames_of(head, heard(head, 1, torch.device("meta"), size))
        labels = torch.randint(2, (batch_size, num_frames, head.config.num_labels), device=device)
        return {**heard(head, batch_size, device, size), "labels": labels}

    return Batches(make, sizes.of_sounds())


def _written(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    config = sizes.decoder_of(head.config)
    labels = torch.randint(config.vocab_size, (batch_size, size), device=device)
    return {**heard(head, batch_size, device), "labels": labels}
