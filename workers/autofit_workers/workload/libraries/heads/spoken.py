"""Batches of texts and their sounds, for models of transformers that generate speech or music."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from autofit_workers.workload.libraries.heads import sizes
from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head

_CODES_A_SECOND = 50  # of EnCodec at 32 kHz, which MusicGen writes (Copet et al. 2023)
_FRAMES_OF_A_TOKEN = 8  # frames of a spectrogram for a letter of speech


def codes() -> Callable[[Head], Batches]:
    """Function that makes batches of texts with audio codes per codebook; sample size is a text's length."""
    return lambda head: Batches(
        functools.partial(_codes, head=head), sizes.of_texts(head.config.text_encoder)
    )


def frames() -> Callable[[Head], Batches]:
    """Function that makes batches of texts with spectrograms of speech; sample size is the text's length."""
    return lambda head: Batches(functools.partial(_frames, head=head), sizes.of_texts(head.config))


def _text(batch_size: int, device: torch.device, vocabulary: int, size: int) -> Batch:
    return {
        "input_ids": torch.randint(vocabulary, (batch_size, size), device=device),
        "attention_mask": torch.ones(batch_size, size, dtype=torch.int64, device=device),
    }


def _codes(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    """Batch of texts with the codes of ten seconds of sound."""
    encoder, decoder = head.config.text_encoder, head.config.decoder
    shape = (batch_size, sizes.SECONDS * _CODES_A_SECOND, decoder.num_codebooks)
    labels = torch.randint(decoder.vocab_size, shape, device=device)
    return {**_text(batch_size, device, encoder.vocab_size, size), "labels": labels}


def _frames(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    config = head.config
    num_frames = min(size * _FRAMES_OF_A_TOKEN, config.max_speech_positions) // config.reduction_factor
    shape = (batch_size, num_frames * config.reduction_factor, config.num_mel_bins)
    speakers = torch.randn(batch_size, config.speaker_embedding_dim, device=device)
    return {
        **_text(batch_size, device, config.vocab_size, size),
        "speaker_embeddings": speakers,
        "labels": torch.randn(shape, device=device),
    }
