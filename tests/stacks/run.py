"""Training stacks, each in an environment of its own: `python tests/stacks/run.py [trainer] [trl]`.

The scripts beside this file are predicted as they are. Where the knobs can say the same of the model alone,
that is predicted too, and the two peaks are within 1 % of each other. The environments lie in the state
directory: a stack pins libraries that another one does not go with. Nothing is trained and no GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit import paths  # noqa: E402

_MOST_APART = 0.01
_BATCH_SIZE = 8
_KNOBS = (
    "--seq-len 512 --base bf16 --precision amp-bf16 --checkpointing blocks --clip-grad-norm 1 "
    "--adapter lora:r=16,targets=q_proj,v_proj"
)


@dataclass(frozen=True, slots=True)
class Script:
    """A training script of a stack; `knobs` say the same of the model alone, where they can."""

    file: str
    knobs: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """What pip installs beside autofit, and the scripts that want it."""

    requirements: tuple[str, ...]
    scripts: tuple[Script, ...]


# TRL's losses are computed in chunks, or of log probabilities: no knob says so.
STACKS = {
    "trainer": Stack(("transformers", "peft", "accelerate"), (Script("trainer_lora.py", _KNOBS),)),
    "trl": Stack(("trl", "peft"), (Script("trl_sft.py"), Script("trl_dpo.py"))),
}


def environment_of(name: str) -> Path:
    """The programs of a stack's environment, made where it is not there."""
    folder = paths.state_dir() / "stacks" / name
    programs = folder / "bin"
    if not (programs / "autofit").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [programs / "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, "-e", ROOT, *STACKS[name].requirements], check=True)
    return programs


def peak_bytes(programs: Path, *what: str) -> int:
    """The allocated peak that `autofit estimate` says.

    Raises:
        RuntimeError: it says none.
    """
    command = [programs / "autofit", "estimate", *what, "--batch-size", str(_BATCH_SIZE), "--json"]
    ran = subprocess.run(
        [*command, "--gpu", "a100-40g"], capture_output=True, text=True, check=False, cwd=HERE
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    document: dict[str, Any] = json.loads(ran.stdout)
    return int(document["peak_allocated_bytes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stacks", nargs="*", choices=[[], *STACKS], help="default: all")
    names = parser.parse_args().stacks or list(STACKS)
    num_apart = 0
    print("| stack | script | allocated peak, MiB | by knobs |\n|---|---|---|---|")
    for name in names:
        programs = environment_of(name)
        for script in STACKS[name].scripts:
            as_it_is = peak_bytes(programs, "--script", script.file)
            beside = "–"
            if script.knobs:
                by_knobs = peak_bytes(
                    programs, "--model", f"hf:{HERE / 'config.json'}", *script.knobs.split()
                )
                apart = by_knobs / as_it_is - 1
                num_apart += abs(apart) > _MOST_APART
                beside = f"{by_knobs / 2**20:,.1f} ({apart:+.3%})"
            print(f"| {name} | `{script.file}` | {as_it_is / 2**20:,.1f} | {beside} |", flush=True)
    return min(num_apart, 1)


if __name__ == "__main__":
    sys.exit(main())
