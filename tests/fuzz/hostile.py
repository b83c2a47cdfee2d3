"""Inputs that nobody means well with, made from valid ones by seed: values, documents, bytes, text."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MOST_BYTES = 10_000_000  # of one input

# fmt: off
TEXTS = (
    "", " ", "0", "-1", "1e400", "nan", "inf", "0x10", "1_000", "٣", "½", "16G", "16Q", "-16G", "1e9G",
    "9" * 30, "9" * 5000, "a" * 300, "a" * 70_000, "/" * 5000, "../" * 900, "a/" * 3000, "\0", "a\0b",
    "\ud800", "x\udcff", "\x1b[31mred", "\x9b2J", "\u202eevil", "\U0001f600", "{}", "[]", "null", "true",
    "'", '"', "`id`", "$(id)", "%s%n", "{0.__class__}", "<script>", "a=b=c", ",,,", ";;", ":", "::", "a:b:c",
    "ddp:0", "ddp:" + "9" * 400, "3x" * 2000, "0x0x0", "every:0", "max_split:-1", "chunked:" + "9" * 25,
    "line\nbreak", "\r", "\t", "postgresql://u:p@h/d", "sqlite:///", "sqlite:////proc/self/mem", "*",
    "a" * 255, "é" * 200,
)
NUMBERS = (
    0, 1, -1, 2, 7, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400,
    0.5, -0.0, 1e308, 1e-300,
)
# fmt: on


def value(random: Random) -> Any:
    """Anything that JSON can say, most of it where it does not belong."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: random.choice((True, False)),
        lambda: random.choice(NUMBERS),
        lambda: random.choice(NUMBERS),
        lambda: random.choice((float("nan"), float("inf"), -float("inf"))),
        lambda: random.choice(TEXTS),
        lambda: random.choice(TEXTS),
        list,
        dict,
        lambda: [value(random) for _ in range(random.randrange(4))],
        lambda: {random.choice(TEXTS): value(random) for _ in range(random.randrange(3))},
        lambda: nested(random.choice((3, 70, 400, 900)), random.choice(("list", "object"))),
        lambda: [random.choice(NUMBERS)] * random.choice((2, 100, 20_000)),
    )
    return random.choice(makers)()


def nested(depth: int, kind: str) -> Any:
    """Lists in lists, or objects in objects."""
    made: Any = 0
    for _ in range(depth):
        made = [made] if kind == "list" else {"a": made}
    return made


def document(valid: Any, random: Random) -> Any:
    """A valid document with a few places changed."""
    changed = copy.deepcopy(valid)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        if random.random() < 0.02:
            changed = value(random)
        elif isinstance(changed, dict | list) and changed:
            _change(changed, random)
    return changed


def _change(root: dict[str, Any] | list[Any], random: Random) -> None:
    """Changes one member, somewhere below."""
    place: Any = root
    while True:
        key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
        below = place[key]
        if not (isinstance(below, dict | list) and below) or random.random() < 0.25:
            break
        place = below
    action = random.randrange(8)
    if action == 0:
        del place[key]
    elif action == 1 and isinstance(place, list):
        # Of what holds others few: what is doubled again and again would never be written out.
        place[key:key] = [below] * random.choice(
            (1, 2) if isinstance(below, dict | list) else (1, 2, 50, 2000)
        )
    elif action == 2 and isinstance(place, dict):
        place[random.choice((*TEXTS, "schema", "unknown"))] = value(random)
    elif action == 3:
        place[key] = random.choice(([below], {"a": below}, str(below)))
    elif action == 4 and type(below) is int:
        place[key] = below + random.choice((-1, 1, 2**40, -(2**40)))
    else:
        place[key] = value(random)


def json_text(changed: Any, random: Random) -> bytes:
    """JSON, with the liberties that Python's writer takes."""
    text = json.dumps(changed, ensure_ascii=random.random() < 0.7)
    return text.encode(errors="surrogatepass")


def damaged(data: bytes, random: Random) -> bytes:
    """Bytes that were flipped, cut out, doubled or put in."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        position = random.randrange(len(made) + 1)
        length = random.choice((1, 1, 4, 64, len(made)))
        action = random.randrange(6)
        if action == 0 and position < len(made):
            made[position] ^= 1 << random.randrange(8)
        elif action == 1:
            del made[position : position + length]
        elif action == 2:
            made[position:position] = made[position : position + length]
        elif action == 3:
            made[position:position] = random.randbytes(min(length, 16))
        elif action == 4:
            del made[position:]
        else:
            made[position:position] = random.choice(_SIGNS)
    return bytes(made[:MOST_BYTES])


_SIGNS = (b"\0", b"[", b"{", b'"', b"\\", b"\n", b",", b"]}", b"\xff\xfe", b"\xef\xbb\xbf", b"1e999", b"NaN",
          b"\\ud800", b"-", b"9" * 40, b'{"a":')  # fmt: skip

_PATTERNS = (
    b"[", b"[[],", b'{"a":', b'{"a":0},', b"[0,", b"0,", b'"ab",', b"9", b" ", b'"', b"\\u0041", b"a.", b"\n",
    b"\0", b"\xf0\x9f\x98\x80", b"[a]\n", b"a = 1\n", b"{},", b"-", b"1e5,",
)  # fmt: skip


def monotonous(random: Random, most_bytes: int) -> bytes:
    """One pattern again and again, with something valid around it or not."""
    pattern = random.choice(_PATTERNS)
    size = random.choice((100, 10_000, most_bytes // 10, most_bytes))
    begin, end = random.choice(((b"", b""), (b"[", b"0]"), (b'{"schema":"x","a":[', b"0]}"), (b'["', b'"]')))
    return begin + pattern * ((size - len(begin) - len(end)) // len(pattern)) + end


def bomb(random: Random) -> bytes:
    """A little that becomes much."""
    return _bomb(
        random.choice((b"\0", b"[", b'{"a":0},', b"0,", b" ", b"\xf0\x9f\x98\x80")), random.choice((1, 2))
    )


@functools.cache
def _bomb(pattern: bytes, times: int) -> bytes:
    """One pattern, beyond what is unpacked, in an object; packed once or twice."""
    packer = zlib.compressobj(1, wbits=31)
    block = pattern * ((1 << 20) // len(pattern))
    data = b"".join(
        [packer.compress(b'{"a":['), *(packer.compress(block) for _ in range(56)), packer.flush()]
    )
    return data if times == 1 else gzip.compress(data)


def line_of(words: Sequence[str], random: Random) -> str:
    """Words and hostile texts, joined by what joins references and options."""
    chosen = [random.choice((*words, *words, random.choice(TEXTS))) for _ in range(random.randrange(1, 6))]
    joints = ("", ":", "/", ".", "=", ",", "@", " ")
    return "".join(word + random.choice(joints) for word in chosen[:-1]) + chosen[-1]
