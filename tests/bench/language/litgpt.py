r"""litgpt.csv: LitGPT's finetuning and generating scripts, run as they are, on one GPU.

Source: Lightning-AI/litgpt, Apache-2.0, `tutorials/resource-tables.md` (one A100 of 40 GB, PyTorch 2.1.0,
lightning 2.1, bitsandbytes 0.41.1) and `config_hub/finetune/README.md` (an A10G, bitsandbytes 0.42.0). What
they print is `max_memory_allocated()` in 1e9 bytes, to the second digit.

Nothing of litgpt is written again here: each row runs its script of the commit that measured it. Only what
a script reads is made up: weights of the right shapes, which take no space on the disk, a tokenizer of one
word, and texts. The tutorial says how long its longest text is, and its scripts begin with it; all texts of
the config hub are cut at its 512 tokens.

The tutorial names commit 8641822 and PyTorch 2.1.0, whose means keep their input (see `old_pytorch`). Its
rows of adapters came three months later: of that commit's code, and nothing that a mean kept.

`--library FOLDER` is made so, in a clone of litgpt:

    pip install --target FOLDER --no-deps lightning==2.4.0 bitsandbytes==0.42.0 \
        jsonargparse docstring-parser typeshed-client
    git worktree add FOLDER/COMMIT COMMIT       of each of the commits below

lightning 2.4 goes with both today's Python and that bitsandbytes, which keeps and takes what 0.41.1 does.

Not traced: rows of several GPUs, and the one that ended in an error of cuBLAS.

Known to be off: the row of full finetuning of Phi-3 cannot be what it says: 3.8 billion weights with their
gradients and the states of AdamW are 30.6 GB, and it has 17.01 on a card of 24.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from autofit.hardware.budget import budget_of
from autofit.hardware.gpus import find_gpu
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.workload.libraries.importing import imported
from tests.bench.language.old_bitsandbytes import without_its_library
from tests.bench.language.old_pytorch import kept_inputs_of_means
from tests.bench.language.runs import ScriptRun, Table

FILE = "llm/litgpt.csv"
_CARDS = {"A100-SXM4-40GB": "a100-40g", "A10G": "a10g"}
_TUTORIAL, _HUB = "litgpt resource-tables.md", "litgpt config_hub/finetune"
_NUM_TEXTS = 1000
_USUAL_LENGTH = 128  # tokens of the texts that are not the longest
# As litgpt's own checkpoints are called, which is how its scripts find a model's configuration.
_CHECKPOINTS = {
    "phi-1.5 1.3 B": "phi-1_5",
    "StableLM Alpha 3 B": "stablelm-base-alpha-3b",
    "Llama 2 7 B": "Llama-2-7b-hf",
    "Llama 2 13 B": "Llama-2-13b-hf",
    "Llama 2 70 B": "Llama-2-70b-hf",
    "CodeLlama 34 B": "CodeLlama-34b-hf",
    "Falcon 40 B": "falcon-40b",
}
# Quantized adapters came later than the rest of the tutorial, with the rows of all adapters.
_TUTORIAL_COMMIT, _ADAPTERS_COMMIT = "8641822", "0f021f3a"
# The commits that first had a configuration's row in the hub's table, with their command.
_HUB_COMMITS = {"5895df10": ("finetune", "{}"), "f247be87": ("finetune_{}",), "2b195c7f": ("finetune_{}",)}
_HUB_METHODS = {"qlora": "lora"}  # others are called as their scripts are
_FOR_GOOD = ExitStack()  # is never left, as each script has a process of its own
_OF_ALL_DATA = ("mask_prompt", "prompt_style", "ignore_index", "seed", "num_workers")
_ASKED_WORD = re.compile(r"""token_to_id\(["']([^"']+)["']\)""")
_MOST_UNLIKE_WORDS = 1  # such as the `hf` of `Llama-2-7b-hf`
_CUT_LENGTH = 700  # words of the hub's texts, more than any of its configurations lets in


def read(folder: Path) -> list[ScriptRun]:
    """The rows of one GPU that ran, or ran out of memory."""
    with (folder / FILE).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _is_traced(row)]
    return [_run(number, row) for number, row in enumerate(rows, 1)]


def _is_traced(row: dict[str, str]) -> bool:
    return row["parallel"] == "none" and row["fit"] in ("yes", "oom")


def _run(number: int, row: dict[str, str]) -> ScriptRun:
    card = find_gpu(_CARDS[row["gpu"]])
    return ScriptRun(
        table=TABLE.name,
        name=f"{number} {row['model']} {row['method']} {row['batch_size']}",
        group=row["method"],
        lay=functools.partial(_laid, _LAID[row["source"]](row)),
        batch_size=int(row["batch_size"]),
        architecture=card.architecture,
        measured={"allocated peak": int(row["peak_bytes"])} if row["fit"] == "yes" else {},
        usable_bytes=budget_of(card, margin=0).usable_bytes,
        fits=row["fit"] == "yes",
    )


def _laid(lay: Callable[[Path], Script], folder: Path) -> Script:
    without_its_library()
    return lay(folder)


def _of_tutorial(row: dict[str, str]) -> Callable[[Path], Script]:
    method, _, quantized = row["method"].partition("+")
    checkpoint, quantize = _CHECKPOINTS[row["model"]], ("--quantize", quantized) if quantized else ()
    if method == "infer":
        return functools.partial(_generating, checkpoint, quantize)
    commit = _ADAPTERS_COMMIT if method.startswith("adapter") else _TUTORIAL_COMMIT
    longest = int(row["seq_len"].removeprefix("max "))
    return functools.partial(
        _finetuning,
        commit=commit,
        method=method,
        checkpoint=checkpoint,
        longest=longest,
        quantize=quantize,
    )


def _generating(checkpoint: str, quantize: tuple[str, ...], folder: Path) -> Script:
    arguments = ("--checkpoint_dir", _lay_checkpoint(folder, "lit_gpt", _TUTORIAL_COMMIT, checkpoint))
    return Script(
        path=_in_library(_TUTORIAL_COMMIT) / "generate" / "base.py",
        arguments=(*arguments, "--precision", "bf16-true", *quantize),
    )


def _finetuning(
    folder: Path, *, commit: str, method: str, checkpoint: str, longest: int, quantize: tuple[str, ...]
) -> Script:
    if commit == _TUTORIAL_COMMIT:
        _FOR_GOOD.enter_context(kept_inputs_of_means())
    usual = [_text(_USUAL_LENGTH)] * _NUM_TEXTS
    # The longest is the last one: a second batch of a traced script was seen to be the first text again.
    torch.save([*usual, _text(longest)], folder / "train.pt")
    torch.save(usual, folder / "test.pt")
    arguments = (
        *("--checkpoint_dir", _lay_checkpoint(folder, "lit_gpt", commit, checkpoint)),
        *("--data_dir", str(folder), "--out_dir", str(folder / "out")),
    )
    return Script(
        path=_in_library(commit) / "finetune" / f"{method}.py",
        arguments=(*arguments, "--precision", "bf16-true", *quantize),
        batch_name="micro_batch_size",
    )


def _text(length: int) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(length, dtype=torch.int64)
    return {"input_ids": tokens, "labels": tokens}


def _of_hub(row: dict[str, str]) -> Callable[[Path], Script]:
    config = row["other"].partition("config=")[2].partition(";")[0]
    return functools.partial(
        _by_config, row["model"].rpartition("/")[2], row["method"], Path(config).name, int(row["batch_size"])
    )


def _by_config(checkpoint: str, method: str, config: str, batch_size: int, folder: Path) -> Script:
    yaml: Any = imported("yaml", config)
    commit, options = _found(yaml, checkpoint, config)
    checkpoint = Path(options["checkpoint_dir"]).name  # as litgpt calls it
    texts = [{"instruction": "a", "input": "", "output": "a " * _CUT_LENGTH}] * _NUM_TEXTS
    for name in ("train", "val"):
        (folder / f"{name}.json").write_text(json.dumps(texts))
    kept = {name: options["data"]["init_args"][name] for name in _OF_ALL_DATA}
    options |= {
        "checkpoint_dir": _lay_checkpoint(folder, "litgpt", commit, checkpoint),
        "out_dir": str(folder / "out"),
        "data": {"class_path": "litgpt.data.JSON", "init_args": kept | {"json_path": str(folder)}},
    }
    options["train"]["micro_batch_size"] = batch_size
    written = folder / config
    written.write_text(yaml.safe_dump(options))
    command = (each.format(_HUB_METHODS.get(method, method)) for each in _HUB_COMMITS[commit])
    return Script(
        path=_in_library(commit) / "litgpt" / "__main__.py", arguments=(*command, "--config", str(written))
    )


def _found(yaml: Any, checkpoint: str, config: str) -> tuple[str, dict[str, Any]]:
    """The first commit with a configuration of that name for a checkpoint, and what it says.

    A checkpoint that no configuration names exactly is one whose name has the same words, or all but one.
    """
    found = [
        (commit, yaml.safe_load(file.read_text(encoding="utf-8")))
        for commit in _HUB_COMMITS
        for file in sorted((_in_library(commit) / "config_hub" / "finetune").glob(f"*/{config}"))
    ]
    for num_unlike in range(_MOST_UNLIKE_WORDS + 1):
        for commit, options in found:
            if _num_unlike(Path(options["checkpoint_dir"]).name, checkpoint) == num_unlike:
                return commit, options
    raise FileNotFoundError(f"no configuration {config} of {checkpoint} in any of {', '.join(_HUB_COMMITS)}")


def _num_unlike(name: str, other: str) -> int:
    """How many words one of two names has and the other has not; upper and lower case are the same."""
    of_name, of_other = (Counter(re.split(r"[-_./ ]", each.lower())) for each in (name, other))
    return (of_name - of_other).total() + (of_other - of_name).total()


def _in_library(name: str) -> Path:
    for folder in sys.path:
        if (Path(folder) / name).is_dir():
            return Path(folder) / name
    raise FileNotFoundError(f"no folder {name} in --library: see {__name__}")


def _lay_checkpoint(folder: Path, package: str, commit: str, name: str) -> str:
    """A checkpoint as litgpt's converter leaves it; each weight is one number, as often as its shape says."""
    sys.path.insert(0, str(_in_library(commit)))
    library: Any = imported(package, name)
    config = library.Config.from_name(name)
    checkpoint = folder / name
    checkpoint.mkdir()
    with torch.device("meta"):
        weights = library.GPT(config).state_dict()
    number = torch.zeros((), dtype=torch.bfloat16)
    torch.save(
        {key: number.expand(each.shape) for key, each in weights.items()}, checkpoint / "lit_model.pth"
    )
    options = dataclasses.asdict(config)
    (checkpoint / "lit_config.json").write_text(json.dumps(options))
    (checkpoint / "model_config.yaml").write_text(imported("yaml", name).safe_dump(options))
    tokenizer = imported("tokenizers", name)
    words = {"a": 0} | {word: number for number, word in enumerate(_asked_words(library), 1)}
    of_words: Any = tokenizer.Tokenizer(tokenizer.models.WordLevel(words, unk_token="a"))
    of_words.pre_tokenizer = tokenizer.pre_tokenizers.WhitespaceSplit()
    of_words.save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "tokenizer_config.json").write_text('{"eos_token": "a", "tokenizer_class": ""}')
    return str(checkpoint)


def _asked_words(library: Any) -> list[str]:
    """Tokens that the library's styles of prompts look up, which a tokenizer must have."""
    prompts = Path(library.__file__).with_name("prompts.py")
    text = prompts.read_text(encoding="utf-8") if prompts.exists() else ""
    return sorted(set(_ASKED_WORD.findall(text)) - {"a"})


_LAID = {_TUTORIAL: _of_tutorial, _HUB: _of_hub}
TABLE = Table(name="litgpt", read=read, asked={"allocated peak": (0.03, 0.08)}, of_scripts=True)
