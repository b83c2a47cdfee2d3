"""Text of the memory that a server has left for its KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from autofit.cli.text.output import bullets, code, grid, heading, indented, share, stdout, styled
from autofit.questions.kv import KvCache
from autofit.units import format_bytes


def print_kv(answer: KvCache) -> None:
    """Prints a server's memory by use, its KV cache with the tokens it holds, and the engine's command."""
    console = stdout()
    options = answer.sizing.options
    ranks = f" · {options.num_ranks} GPUs" if options.num_ranks > 1 else ""
    console.print(
        styled(answer.model, "bold"),
        f"on {answer.gpu}{ranks} · {answer.engine}, by the rules of {answer.release}",
    )
    console.print()
    _memory(console, answer)
    if answer.fits:
        _cache(console, answer)
    else:
        console.print()
        console.print(
            styled("There is no room for a KV cache:", "bold red"),
            f"{format_bytes(answer.missing_bytes)} are missing on each card.",
        )
        heading(console, "What would help")
        bullets(console, answer.advice)
    if answer.fits:
        heading(console, "Command")
        code(console, [answer.command])
    if answer.sizing.notes:
        heading(console, "Assumed")
        bullets(console, answer.sizing.notes)


def _memory(console: Console, answer: KvCache) -> None:
    sizing = answer.sizing
    total = sizing.options.gpu.total_bytes
    table = grid("left", "right", "right")
    for name, num_bytes in _parts(answer):
        style = "bold" if name.startswith("=") else ""
        table.add_row(styled(name, style), styled(format_bytes(num_bytes), style), share(num_bytes, total))
    console.print(indented(table))


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


def _cache(console: Console, answer: KvCache) -> None:
    pool, options = answer.sizing.pool, answer.sizing.options
    least, likely, most = answer.num_tokens
    heading(console, "KV cache")
    table = grid("left", "right", "left")
    table.add_row("tokens", f"{likely:,}", styled(f"{least:,} to {most:,}", "dim"))
    table.add_row("blocks", f"{pool.num_blocks:,}", styled(f"of {pool.block_size} tokens", "dim"))
    table.add_row("one token", f"{answer.token_bytes:,}", styled(_layers(answer), "dim"))
    table.add_row("longest sequence", f"{answer.max_model_len:,}", styled(_limit(answer), "dim"))
    table.add_row(
        "requests at once",
        f"{answer.num_requests:,}",
        styled(f"of {answer.length:,} tokens, by memory{_by_setting(options.max_num_seqs, answer)}", "dim"),
    )
    console.print(indented(table))


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
