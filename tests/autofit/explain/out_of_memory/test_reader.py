"""Out-of-memory errors are read from messages and whole logs, and their causes told."""

from __future__ import annotations

import random
import time

import pytest

from autofit.explain.out_of_memory.diagnosis import Cause, diagnose
from autofit.explain.out_of_memory.reader import (
    UnreadableErrorError,
    main_failure,
    names_failure,
    read_failures,
)
from tests.autofit.explain.out_of_memory.messages import GIB, MESSAGES, MIB, Message

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 88, in <module>
    main()
  File "/home/me/project/loop.py", line 41, in step
    out = model(batch)
  File "/opt/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
"""


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_every_wording_is_read(message: Message) -> None:
    assert names_failure(message.text.encode())
    (failure,) = read_failures(message.text.encode())
    assert failure.who == message.who
    stated = {name: getattr(failure, name) for name in message.sizes}
    if "processes" in stated:
        stated["processes"] = [(each.pid, each.num_bytes) for each in failure.processes]
    assert stated == message.sizes
    assert diagnose(failure).cause is message.cause


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_every_wording_is_found_in_a_log_of_several_ranks_with_colours(message: Message) -> None:
    lines = [*TRACEBACK.splitlines(), *message.text.splitlines()]
    log = ["\x1b[32mINFO\x1b[0m epoch 3", "loss 0.5"]
    for line in lines:  # ranks write their lines in turn
        log += [f"[rank0]: {line}", f"[rank1]: \x1b[31m{line}\x1b[0m"]
    failures = read_failures("\n".join([*log, "W1128 torchrun: sending SIGTERM"]).encode())
    assert {failure.who for failure in failures} == {message.who}
    assert {failure.line for failure in failures} == {"loop.py:41:step"}
    assert [failure.rank for failure in failures] == [0, 1]
    for failure in failures:  # whatever lines of the other rank lie between
        stated = {name: getattr(failure, name) for name in message.sizes.keys() - {"processes", "rank"}}
        assert stated == {name: message.sizes[name] for name in stated}
        assert diagnose(failure).cause is message.cause


def test_equal_errors_are_one_and_the_last_with_sizes_is_told() -> None:
    full, library = MESSAGES[4].text, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED"
    other = full.replace("1.50 GiB", "1.75 GiB")
    failures = read_failures(f"{full}\n{full}\n{other}\n{library}".encode())
    assert [failure.count for failure in failures] == [2, 1, 1]
    assert main_failure(failures).requested_bytes == round(1.75 * GIB)


def test_sizes_of_the_next_error_are_not_taken() -> None:
    first, second = read_failures(b"CUDA out of memory.\n" + MESSAGES[0].text.encode())
    assert (first.requested_bytes, second.requested_bytes) == (None, 20 * MIB)


def test_a_log_in_utf_16_is_read() -> None:
    (failure,) = read_failures(MESSAGES[0].text.encode("utf-16"))
    assert failure.requested_bytes == 20 * MIB


def test_what_is_held_adds_up() -> None:
    (failure,) = read_failures(MESSAGES[6].text.encode())
    found = diagnose(failure)
    assert found.others_bytes == sum(each.num_bytes for each in failure.processes)
    assert failure.process_bytes is not None
    assert failure.reserved_bytes is not None
    assert found.other_bytes == failure.process_bytes - failure.reserved_bytes
    assert found.limit_bytes == failure.reserved_bytes + (failure.free_bytes or 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "has no out-of-memory error"),
        (b"ValueError: shapes do not match", "has no out-of-memory error"),
        (b"\x00\x01\x02CUDA out of memory", "is binary"),
        (b"jax: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.", "of JAX or TensorFlow"),
        (b"CUDA out of memory. Tried to allocate 9e999 GiB.", "no memory has"),
        (b"CUDA out of memory. Tried to allocate -3.00 GiB.", "no memory has"),
        (b"CUDA out of memory. Tried to allocate " + b"9" * 500 + b" GiB.", "no memory has"),
    ],
)
def test_what_is_no_such_error_is_told(text: bytes, words: str) -> None:
    with pytest.raises(UnreadableErrorError, match=words):
        read_failures(text)


def test_noise_around_an_error_raises_nothing_else() -> None:
    random.seed(7)
    for message in MESSAGES:
        for _ in range(20):
            text = bytearray(message.text.encode())
            for _ in range(random.randrange(1, 9)):
                text[random.randrange(len(text))] = random.randrange(1, 256)
            try:
                assert all(diagnose(each).cause in Cause for each in read_failures(bytes(text)))
            except UnreadableErrorError as error:
                assert str(error)


def test_a_long_log_costs_no_more_than_reading_it() -> None:
    line = (
        b'[rank0]: CUDA out of memory. step 1: loss 2.3 Process 12 has \x1b[31m [rank1]: File "a", line 1\n'
    )
    started = time.process_time()
    read_failures(line * 40_000)
    assert time.process_time() - started < 60
