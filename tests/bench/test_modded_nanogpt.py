"""The bench of modded-nanogpt takes scripts out of logs, and makes token files that they can read."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from tests.bench.language import modded_nanogpt

_SCRIPT = "import torch\nprint('trained')\n"
_RULER = 100 * "="
_HEADING = f"\n\n{40 * '-'}\n# triton_kernels.py\n{40 * '-'}\n\n"


def test_a_log_begins_with_its_script():
    log = f"{_SCRIPT}\n{_RULER}\nRunning Python 3.12\n{_RULER}\nstep:1/10\n"
    assert modded_nanogpt.sources(log) == {"train_gpt.py": _SCRIPT + "\n"}


def test_a_log_may_have_a_module_after_its_script():
    log = f"{_SCRIPT}{_HEADING}import triton\n\n{_RULER}\nRunning Python 3.12\n"
    found = modded_nanogpt.sources(log)
    assert found["train_gpt.py"].strip() == _SCRIPT.strip()
    assert found["triton_kernels.py"].strip() == "import triton"
    assert len(found) == 2


def test_a_token_file_has_a_header_and_beginnings_of_texts():
    made = modded_nanogpt.tokens(2000)
    assert struct.unpack_from("<3i", made) == (20240520, 1, 2000)
    tokens = struct.unpack_from("<2000H", made, 4 * 256)
    assert len(made) == 4 * 256 + 2 * 2000
    assert [at for at, token in enumerate(tokens) if token == 50256] == [0, 700, 1400]


def _git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_log_is_read_from_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a log.txt").write_text(_SCRIPT)
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "--message", "log")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.syspath_prepend(tmp_path)
    url = f"https://github.com/of/records/blob/{commit}/a%20log.txt"
    assert modded_nanogpt._log(url) == _SCRIPT
    with pytest.raises(FileNotFoundError, match=r"no clone in --library has another\.txt"):
        modded_nanogpt._log(url.replace("a%20log", "another"))


def test_tokens_are_read_from_the_folder_of_the_script():
    outside = 'train_files: str = "/data/someone/data/fineweb10B/fineweb_train_*.bin"'
    within = 'train_files: str = "data/fineweb10B/fineweb_train_*.bin"'
    assert modded_nanogpt._OUTSIDE.sub("", outside) == within
    assert modded_nanogpt._OUTSIDE.sub("", within) == within
    joined = 'os.path.join(data_path, "data/fineweb10B/fineweb_train_*.bin")'
    assert modded_nanogpt._OUTSIDE.sub("", joined) == joined
