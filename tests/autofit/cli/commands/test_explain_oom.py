"""`autofit explain-oom`: what an out-of-memory error says, and what would have avoided it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.autofit.explain.out_of_memory.messages import GIB, MESSAGES, Message
from tests.commands import Finished

Autofit = Callable[..., Finished]
TINY = f"{Path(__file__).parents[2] / 'tiny_workloads.py'}:small"
BY_NAME = {message.name: message for message in MESSAGES}
FULL = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 MiB. GPU 0 has a total capacity of 23.69 \
GiB of which {free} is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the \
allocated memory {allocated} is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated.
"""


@pytest.fixture
def log(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        path = tmp_path / "train.log"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_every_message_is_explained_in_text_and_as_its_schema_says(
    autofit: Autofit, log: Callable[[str | bytes], str], message: Message
) -> None:
    path = log(message.text)
    text = autofit("explain-oom", path)
    assert (text.code, text.err) == (0, "")
    assert "ran out of memory" in " ".join(text.out.split())
    assert "What to do" in text.out
    document = autofit("explain-oom", path, "--json").document
    schema = json.loads(autofit("schema", "explained-error").out)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document.keys() == schema["properties"].keys()
    assert document["diagnosis"]["cause"] == message.cause
    assert document["next_steps"]


def test_who_held_the_card_is_said(autofit: Autofit, log: Callable[[str | bytes], str]) -> None:
    done = autofit("explain-oom", log(BY_NAME["2.7, several processes"].text))
    text = " ".join(done.out.split())
    for words in (
        "on GPU 0 when asked for 42.00 MiB: other processes held what was missing",
        "process 3053273 29.04 GiB",
        "allocated by PyTorch 3.20 GiB",
        "outside PyTorch's allocator 237.38 MiB",
        "process 3053273 the most",
    ):
        assert words in text


def test_what_is_fragmented_is_told_with_what_helps(
    autofit: Autofit, log: Callable[[str | bytes], str]
) -> None:
    text = " ".join(autofit("explain-oom", log(BY_NAME["2.9, fragmented"].text)).out.split())
    assert "the memory was fragmented" in text
    assert "enough for the request, had it been in one piece" in text
    assert "expandable_segments:True" in text


def test_the_errors_of_several_ranks_are_listed(autofit: Autofit, log: Callable[[str | bytes], str]) -> None:
    lines = [f"[rank{rank}]: {BY_NAME['2.2'].text}" for rank in (0, 3)]
    text = " ".join(autofit("explain-oom", log("\n".join(lines))).out.split())
    assert "on GPU 1, rank 3" in text
    assert "GPU 1, rank 0 1.50 GiB" in text


def test_standard_input_is_read(autofit: Autofit, monkeypatch: pytest.MonkeyPatch) -> None:
    text = BY_NAME["1.12"].text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    document = autofit("explain-oom", "-", "--json").document
    assert (document["name"], document["error"]["device"]) == ("standard input", 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no out-of-memory error"),
        ("epoch 1: loss 2.3\n", "has no out-of-memory error"),
        (bytes(range(256)) * 8, "is binary"),
        ("CUDA out of memory. Tried to allocate 9e99 GiB.", "no memory has"),
        ("RESOURCE_EXHAUSTED: Out of memory", "JAX or TensorFlow"),
        (b"CUDA out of memory. " * (5 << 19), "larger than 48 MiB"),
    ],
    ids=["empty", "no error", "binary", "overflow", "jax", "huge"],
)
def test_hostile_input_is_one_sentence(
    autofit: Autofit, log: Callable[[str | bytes], str], content: str | bytes, words: str
) -> None:
    done = autofit("explain-oom", log(content))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err


def test_bad_options_are_one_sentence(autofit: Autofit, log: Callable[[str | bytes], str]) -> None:
    path = log(BY_NAME["2.2"].text)
    for options, words in (
        (("--batch-size", "8"), "--batch-size is of a model"),
        (("--model", "gpt2"), "--batch-size"),
        (("--model", "no-such-model", "--batch-size", "8"), "no-such-model"),
        (("--model", "gpt2", "--batch-size", "8", "--gpu", "rtx-9999"), "rtx-9999"),
    ):
        done = autofit("explain-oom", path, *options)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert words in done.err
    missing = autofit("explain-oom", str(Path(path).parent / "none.log"))
    assert (missing.code, missing.err.count("\n")) == (2, 1)


def avoided(autofit: Autofit, path: str, *options: str) -> dict[str, Any]:
    done = autofit("explain-oom", path, *options, "--json", "-q")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.document["avoiding"]
    return found


def lacking(peak_bytes: int) -> str:
    """Error of a card with room for nearly as much as a step needs: half allocated, half free."""
    room = int(peak_bytes * 0.9)
    parts = {"free": room // 2, "allocated": room // 2, "unused": 0}
    return FULL.format(**{name: f"{size} bytes" for name, size in parts.items()})


@pytest.mark.process
def test_the_changes_that_are_told_are_those_that_estimate_finds_to_fit(
    autofit: Autofit, log: Callable[[str | bytes], str]
) -> None:
    step = ("--model", TINY, "--batch-size", "16", "--gpu", "rtx-3090")
    high = autofit("estimate", *step, "--json", "-q").document["interval"]["high_bytes"]
    found = avoided(autofit, log(lacking(high)), *step)
    assert (found["would_fit"], found["gpu"], found["interval"]["high_bytes"]) == (False, "rtx-3090", high)
    assert 1 <= len(found["changes"]) <= 3
    for change in found["changes"]:
        options = [word for option in change["options"] for word in option.split()]
        if "--gpu" in options:
            continue
        again = autofit("estimate", *step, *options, "--json", "-q").document
        assert again["interval"]["high_bytes"] == change["peak_reserved_bytes"] <= found["limit_bytes"]
    text = " ".join(autofit("explain-oom", log(lacking(high)), *step, "-q").out.split())
    assert "What would have avoided it, as predicted" in text


@pytest.mark.process
def test_a_step_that_fits_is_not_why_it_failed(autofit: Autofit, log: Callable[[str | bytes], str]) -> None:
    found = avoided(
        autofit, log(lacking(20 * GIB)), "--model", TINY, "--batch-size", "8", "--gpu", "rtx-3090"
    )
    assert (found["would_fit"], found["changes"]) == (True, [])


@pytest.mark.process
def test_a_script_is_told_a_smaller_batch(autofit: Autofit, log: Callable[[str | bytes], str]) -> None:
    script = Path(__file__).parents[4] / "configs" / "examples" / "train.py"
    step = (
        "--script",
        str(script),
        "--batch-arg",
        "--batch-size",
        "--batch-size",
        "512",
        "--gpu",
        "rtx-3090",
    )
    high = autofit("estimate", *step, "--json", "-q").document["interval"]["high_bytes"]
    found = avoided(autofit, log(lacking(high)), *step)
    sizes = [change for change in found["changes"] if change["options"][0].startswith("--batch-size")]
    assert sizes[0]["peak_reserved_bytes"] <= found["limit_bytes"]
