"""modded_nanogpt.csv: records of modded-nanogpt, each by the script that its log begins with, as it is.

Source: KellerJordan/modded-nanogpt, MIT, `records/**` at f411b3d3: GPT-2 trained on 8 H100 (one on a single
GPU, two on H200), every model compiled, by PyTorch 2.6 to 2.11, most of them nightly builds. At the end a
script prints `max_memory_allocated()`, and since January 2025 `max_memory_reserved()` too, of its first rank:
over warm-up, training and validation.

Nothing of the repository is kept here. `--library` names a clone of it, bare or not, whose logs are read: a
log begins with the script, and later ones go on with the module of Triton kernels that it imports. Both are
written to a temporary folder, with token files of the scripts' own format, whose documents are made up.

PyTorch's release is the one that predicts, not the one that ran: its Inductor may fuse otherwise.
"""

from __future__ import annotations

import csv
import functools
import os
import re
import struct
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

from autofit.hardware.gpus import find_gpu
from autofit_workers.spec.workloads.scripts import Script
from tests.bench.language.runs import ScriptRun, Table

FILE = "llm/modded_nanogpt.csv"
_CARD = find_gpu("h100-80g")
_QUANTITIES = {"max_allocated": "allocated peak", "max_reserved": "reserved peak"}
_SCRIPT = "train_gpt.py"
_END_OF_SCRIPT = "\n" + 100 * "="
_MODULE = re.compile(r"^-{40}\n# (\w+\.py)\n-{40}\n\n", re.MULTILINE)
# Folders of logs that a script writes to and does not make: `run_id: str = f"new/{uuid.uuid4()}"`.
_LOG_FOLDERS = re.compile(r'^ *run_id: str = f?"([\w.-]+)/', re.MULTILINE)
# Folders outside the script's own that some scripts read tokens from.
_OUTSIDE = re.compile(r"(?<=[\"'])/[^\"'\s]*/(?=data/fineweb10B/)")
_URL = re.compile(r"/blob/(?P<commit>[0-9a-f]+)/(?P<path>[^#]*)")
# Token files, as the repository's `data/cached_fineweb10B.py` writes them.
_MAGIC, _VERSION, _NUM_OF_HEADER = 20240520, 1, 256
_TOKEN, _BEGIN = 11, 50256  # of a text, and of its beginning
_LENGTH = 700  # tokens of a text
_DATA = "data/fineweb10B"
_NUM_TOKENS = 100_000_000  # of a file, as of the data set's own
_FILES = ("fineweb_val_000000.bin", *(f"fineweb_train_{number:06}.bin" for number in range(1, 10)))
_LOWERING_SECONDS = 3600.0  # a bench runs beside others, on few cores


def read(folder: Path) -> list[ScriptRun]:
    """The scripts, with what was measured of each."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    scripts: dict[str, dict[str, int]] = {}
    first: dict[str, Mapping[str, str]] = {}
    for row in rows:
        name = _name(row)
        first.setdefault(name, row)
        scripts.setdefault(name, {})[_QUANTITIES[row["peak_kind"]]] = int(row["peak_bytes"])
    return [_run(name, row, scripts[name]) for name, row in first.items()]


def _name(row: Mapping[str, str]) -> str:
    about = dict(part.split("=", 1) for part in row["other"].split("; "))
    return f"{about['record']} {about['script_sha1'][:4]}"


def _run(name: str, row: Mapping[str, str], measured: Mapping[str, int]) -> ScriptRun:
    release = ".".join(row["torch_version"].split(".")[:2])
    return ScriptRun(
        table=TABLE.name,
        name=f"{name} {row['torch_version']}",
        group=f"PyTorch {release}",
        lay=functools.partial(_laid, row["url"], int(row["parallel"].rpartition(":")[2])),
        batch_size=1,
        keeps_batch=True,
        architecture=_CARD.architecture,
        measured=measured,
    )


def _laid(url: str, num_ranks: int, folder: Path) -> Script:
    from autofit_workers.tracing.compiled import entry

    entry.MOST_SECONDS = _LOWERING_SECONDS
    for name, source in sources(_log(url)).items():
        (folder / name).write_text(_OUTSIDE.sub("", source), encoding="utf-8")
    for each in ("", *_LOG_FOLDERS.findall((folder / _SCRIPT).read_text(encoding="utf-8"))):
        (folder / "logs" / each).mkdir(parents=True, exist_ok=True)
    (folder / _DATA).mkdir(parents=True)
    first, *others = (folder / _DATA / name for name in _FILES)
    first.write_bytes(tokens(_NUM_TOKENS))
    for each in others:
        each.hardlink_to(first)
    os.chdir(folder)
    return Script(path=_SCRIPT, launcher="torchrun", num_processes=num_ranks)


def _log(url: str) -> str:
    """Text of a log, from the clone that `--library` names.

    Raises:
        FileNotFoundError: no clone has it.
    """
    found = _URL.search(urllib.parse.unquote(url))
    assert found is not None
    for folder in sys.path:
        git = ["git", "-C", folder or ".", "show", f"{found['commit']}:{found['path']}"]
        shown = subprocess.run(git, capture_output=True, encoding="utf-8", check=False)
        if shown.returncode == 0:
            return shown.stdout
    raise FileNotFoundError(f"no clone in --library has {found['path']}: see {__name__}")


def sources(log: str) -> dict[str, str]:
    """Files of a record, by name: its script, and modules that a log has after it."""
    script, *modules = _MODULE.split(log.partition(_END_OF_SCRIPT)[0] + "\n")
    return {_SCRIPT: script, **dict(zip(modules[::2], modules[1::2], strict=True))}


def tokens(num_tokens: int) -> bytes:
    """File of tokens, with a beginning of a text now and then."""
    header = struct.pack(f"<{_NUM_OF_HEADER}i", *_header(num_tokens))
    text = struct.pack(f"<{_LENGTH}H", _BEGIN, *[_TOKEN] * (_LENGTH - 1))
    return header + (text * (num_tokens // _LENGTH + 1))[: 2 * num_tokens]


def _header(num_tokens: int) -> Iterator[int]:
    yield from (_MAGIC, _VERSION, num_tokens)
    yield from [0] * (_NUM_OF_HEADER - 3)


TABLE = Table(
    name="modded_nanogpt",
    read=read,
    asked={"allocated peak": (0.03, 0.10), "reserved peak": (0.03, 0.10)},
    of_scripts=True,
)
