"""Lays out the memory of a language model's server, and its KV cache, as sections of tables."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.section import Bullets, Cell, Code, Paragraph, Section, grid, quiet, right, table
from autofit.answers.words.numbers import rate, share, three_digits
from autofit.explain.timing import StepSeconds
from autofit.questions.kv import KvCache
from autofit.units import format_bytes


def kv_sections(answer: KvCache) -> Iterator[Section]:
    """Yields the memory of a language model's server by use, the tokens its KV cache holds, and its command.

    If there is no room for a KV cache, the missing bytes and what would help are shown in place of tokens.
    """
    options = answer.sizing.options
    ranks = f" · {options.num_ranks} GPUs" if options.num_ranks > 1 else ""
    said = f"{answer.model} on {answer.gpu}{ranks} · {answer.engine}, by the rules of {answer.release}"
    yield Section(name="configuration", blocks=(Paragraph(said, "strong", (answer.model,)),))
    total = options.gpu.total_bytes
    rows = (
        (_marked(name, name), _marked(name, format_bytes(num_bytes)), share(num_bytes, total))
        for name, num_bytes in _parts(answer)
    )
    yield Section(name="memory", title="The memory", blocks=(grid("<>>", rows),), is_leading=True)
    if answer.fits:
        yield _cache(answer)
        if answer.speed.loads:
            yield _speed(answer)
        yield Section(name="command", title="Command", blocks=(Code((answer.command,)),))
    else:
        no_room = "There is no room for a KV cache:"
        missing = f"{format_bytes(answer.missing_bytes)} are missing on each card."
        yield Section(name="answer", blocks=(Paragraph(f"{no_room} {missing}", "bad", (no_room,)),))
        yield Section(name="help", title="What would help", blocks=(Bullets(tuple(answer.advice)),))
    notes = (*answer.sizing.notes, *((answer.speed.note,) if answer.fits else ()))
    if notes:
        yield Section(name="notes", title="Assumed", blocks=(Bullets(notes),))


def _marked(name: str, text: str) -> Cell:
    return Cell(text, "strong" if name.startswith("=") else "")


def _parts(answer: KvCache) -> Iterator[tuple[str, int]]:
    sizing = answer.sizing
    yield f"the engine's share, {sizing.options.utilization:g}", sizing.usable_bytes
    yield "- weights", sizing.weights_bytes
    if sizing.activation_bytes:
        yield "- activations", sizing.activation_bytes
    for name, num_bytes in (*sizing.outside.parts.items(), *sizing.graphs.parts.items()):
        yield f"- {name}", num_bytes
    if answer.fits:
        yield "= KV cache", sizing.left_bytes


def _cache(answer: KvCache) -> Section:
    """Section on the KV cache: tokens, blocks, longest sequence and number of requests."""
    pool = answer.sizing.pool
    least, likely, most = answer.num_tokens
    by_setting = _by_setting(answer.sizing.options.max_num_seqs, answer)
    rows = (
        ("tokens", f"{likely:,}", f"{least:,} to {most:,}"),
        ("blocks", f"{pool.num_blocks:,}", f"of {pool.block_size} tokens"),
        ("one token", f"{answer.token_bytes:,}", _layers(answer)),
        ("longest sequence", f"{answer.max_model_len:,}", _limit(answer)),
        (
            "requests at once",
            f"{answer.num_requests:,}",
            f"of {answer.length:,} tokens, by memory{by_setting}",
        ),
    )
    shown = grid("<><", ((name, number, quiet(note)) for name, number, note in rows))
    return Section(name="cache", title="KV cache", blocks=(shown,))


def _speed(answer: KvCache) -> Section:
    """Section on the time to the first token and the tokens a second, by requests and their tokens."""
    titles = ("at once", "tokens", "first, ms", "95 %", "token, ms", "95 %", "tokens/s")
    rows = (
        (
            f"{load.num_requests:,}",
            f"{load.context:,}",
            *_milliseconds(load.first_token_seconds),
            *_milliseconds(load.token_seconds),
            rate(load.tokens_per_second),
        )
        for load in answer.speed.loads
    )
    return Section(name="speed", title="Speed", blocks=(table(map(right, titles), rows),))


def _milliseconds(seconds: StepSeconds | None) -> tuple[str, Cell]:
    """Likely milliseconds, and the interval with 95 % confidence."""
    if seconds is None:
        return "–", quiet("")
    low, likely, high = (three_digits(1000 * each) for each in (seconds.low, seconds.likely, seconds.high))
    return likely, quiet(f"{low} to {high}")


def _layers(answer: KvCache) -> str:
    layers = ", ".join(f"{number} of {kind}" for kind, number in answer.layers.items())
    return f"bytes on each card; layers: {layers}"


def _limit(answer: KvCache) -> str:
    wanted = answer.sizing.options.max_model_len
    if wanted is not None and answer.max_model_len < wanted:
        return f"{wanted:,} tokens do not fit: pass --max-model-len {answer.max_model_len} or less"
    return "the model's limit, or yours" if wanted is not None else "limited by memory alone"


def _by_setting(max_num_seqs: int | None, answer: KvCache) -> str:
    if max_num_seqs is not None and max_num_seqs < answer.num_requests:
        return f"; the engine runs {max_num_seqs:,}"
    return ""
