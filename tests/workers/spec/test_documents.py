"""What others wrote is read within its limits, or refused in words."""

from __future__ import annotations

import gzip
import json
import os
import resource
import zlib
from pathlib import Path

import pytest

from autofit_workers.spec.documents import (
    MOST_BYTES,
    MOST_LEVELS,
    MOST_MEMBERS,
    MOST_TOML_BYTES,
    DocumentError,
    inflate,
    parse_json,
    parse_toml,
    read_file,
)


def test_reads_what_json_writes() -> None:
    document = {"a": [1, -2.5, None, True, "ü\U0001f600"], "sha": "1234567890" * 6, "most": 2**63 - 1}
    assert parse_json(json.dumps(document)) == document
    assert parse_json(json.dumps(document, ensure_ascii=False).encode("utf-8-sig")) == document


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), "levels deep"),
        ("[" * 100_000, "levels deep"),
        ('{"a":' * 3_000 + "1" + "}" * 3_000, "levels deep"),
        (f"[{2**63}]", "more than 64 bits"),
        (f"[-{'9' * 5_000}]", "more than 64 bits"),
        ("[1e999]", "not finite"),
        ("[NaN]", "not finite"),
        ('[{"a":0}' + ',{"a":0}' * 1_200_000 + "]", "more values"),
        ('["\U0001f600' + "a" * MOST_BYTES + '"]', "larger"),
        ('["\U0001f600' + "a" * (MOST_BYTES - 100) + '"]', "more values"),
    ],
)
def test_refuses_json_beyond_a_limit(text: str | bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_json(text)


def test_the_deepest_document_is_read() -> None:
    assert parse_json("[" * MOST_LEVELS + "]" * MOST_LEVELS)


@pytest.mark.parametrize("text", [r'["\ud800"]', r'{"\uDfff": 1, "b": "a\\ud800"}', '["\ud800"]'])
def test_no_half_of_a_character_comes_out(text: str) -> None:
    value = parse_json(text)
    json.dumps(value, ensure_ascii=False).encode()
    assert "?" in str(value)


def test_a_file_name_s_backslash_stays() -> None:
    assert parse_json(r'["a\\udder", "\ud83d\ude00"]') == ["a\\udder", "\U0001f600"]


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_inflates_gzip_and_zlib_up_to_the_limit(compress) -> None:  # type: ignore[no-untyped-def]
    assert inflate(compress(b"a" * 1000), 1000) == b"a" * 1000
    with pytest.raises(DocumentError, match="grows beyond"):
        inflate(compress(b"a" * 1001), 1000)


def test_inflates_several_members_up_to_the_limits() -> None:
    assert inflate(gzip.compress(b"abc") + gzip.compress(b"") + gzip.compress(b"def"), 6) == b"abcdef"
    with pytest.raises(DocumentError, match="grows beyond"):
        inflate(gzip.compress(b"abc") + gzip.compress(b"def"), 5)
    assert inflate(gzip.compress(b"a") * MOST_MEMBERS) == b"a" * MOST_MEMBERS
    with pytest.raises(DocumentError, match="members"):
        inflate(gzip.compress(b"a") * (MOST_MEMBERS + 1))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"plain", "damaged"),
        (gzip.compress(b"abc" * 99, mtime=0)[:-9], "truncated"),
        (gzip.compress(b"abc", mtime=0) + b"more", "damaged"),
        (gzip.compress(b"abc", mtime=0) + gzip.compress(b"def", mtime=0)[:-9], "truncated"),
        (gzip.compress(b"abc", mtime=0)[:-8] + b"\0" * 8, "damaged"),
    ],
)
def test_refuses_what_is_no_whole_archive(data: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        inflate(data)


def test_reads_toml() -> None:
    assert parse_toml(b'[tune]\ngpu-mem = "16G"\nsearch = ["a"]\n') == {
        "tune": {"gpu-mem": "16G", "search": ["a"]}
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + ".".join("a" * 100_000) + "]", "dots"),
        (".".join("a" * 100_000) + " = 1", "dots"),
        (".".join(["'\u2028'"] * 300) + " = 1", "dots"),
        (".".join(["'\x85'"] * 300) + " = 1", "dots"),
        ("x = " + "[" * 90_000, "levels deep"),
        ("x = " + "[" * 70 + "]" * 70, "levels deep"),
        ("x = [" + "0," * MOST_TOML_BYTES + "]", "larger"),
        ("x = 0x" + "f" * 20_000, "more than 64 bits"),
        ("x = [[9223372036854775808]]", "more than 64 bits"),
        ("x = " + "9" * 5_000, "is not TOML"),
        ("x = inf", "not finite"),
        ("x = 1\nx = 2", "is not TOML"),
    ],
)
def test_refuses_toml_beyond_a_limit(text: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_toml(text)


def test_reads_a_file_and_what_is_written_to_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert read_file(file) == b"abc"
    output, entrance = os.pipe()
    os.write(entrance, b"def")
    os.close(entrance)
    try:
        assert read_file(f"/dev/fd/{output}") == b"def"
    finally:
        os.close(output)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "large").write_bytes(b"a" * 101)
    reasons = {
        tmp_path: "Is a directory",
        tmp_path / "none": "No such file",
        tmp_path / "loop": "Too many levels",
        tmp_path / ("a" * 256): "File name too long",
        tmp_path / "a\0b": "no file can have that name",
        tmp_path / "a\ud800b": "no file can have that name",
        tmp_path / "large": "larger",
    }
    for path, reason in reasons.items():
        with pytest.raises(OSError, match=reason) as caught:
            read_file(path, most_bytes=100)
        assert caught.value.strerror


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match="nothing was written"):
        read_file(tmp_path / "pipe", pipe_seconds=0.01)


def test_a_pipe_is_read_where_a_thousand_files_are_open() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(2048, limits[1])), limits[1]))
    output, entrance = os.pipe()
    os.write(entrance, b"def")
    os.close(entrance)
    taken = [output]
    try:
        while taken[-1] < 1024:
            taken.append(os.dup(output))
        assert read_file(f"/dev/fd/{output}") == b"def"
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_trace_of_many_passes_is_read():
    row = '[4194304,"activation",3,5,2,1,[4,1024],null,null]'
    text = "[" + ",".join([row] * 500_000) + "]"
    assert len(parse_json(text)) == 500_000
