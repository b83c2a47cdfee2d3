"""Training stacks, each in an environment of its own: `python tests/stacks/run.py [trainer] [trl] …`.

The scripts beside this file, the programs that stacks bring (`axolotl train …`), the examples of diffusers'
repository (`--diffusers CHECKOUT`) and configurations of torchtitan's (`--torchtitan CHECKOUT`) are predicted
as they are, at a batch size and at twice that:

- the peak is above the weights and the optimizer's state that the run has, and grows with the batch
- what a script does beside its steps (evaluation, generation, checkpoints) is a phase of the answer
- where the knobs can say the same of the model alone, that peak is within 1 % of the script's

The environments lie in the state directory: a stack pins libraries that another one does not go with. One
that has the libraries already serves by `--environment`, and `--script` names some of the scripts:
`run.py trainer --environment .venv --script trainer_lora.py`.
Nothing is trained, nothing but packages is downloaded, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit import paths  # noqa: E402

_MOST_APART = 0.01
_LORA = (
    "--base bf16 --precision amp-bf16 --checkpointing blocks --clip-grad-norm 1 "
    "--adapter lora:r=16,targets=q_proj,v_proj"
)
# An open range of torch would bring the newest build for CUDA, gigabytes larger.
_TORCH_ALONE = ("torch==2.13.0", "torchvision==0.28.0")


@dataclass(frozen=True, slots=True)
class Script:
    """A training script of a stack, or a program of its own.

    Attributes:
        file: beside this one, the name of a program, or a path in the stack's repository.
        arguments: of its command line.
        batch: how its batch size is set, as options of `estimate`; else the data loader's is changed.
        ranks: how a launcher starts it, as options of `estimate`; else it is called by itself.
        knobs: they say the same of the model alone, where they can.
        model: that model, for `estimate`.
        phases: beside those of steps.
        peak_phase: the one that holds the peak, where that is known.
        batch_size: the smaller of the two.
        shown: in its row; else its file.
    """

    file: str
    arguments: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    knobs: str = ""
    model: str = f"hf:{HERE / 'config.json'}"
    phases: tuple[str, ...] = ()
    peak_phase: str = ""
    batch_size: int = 4
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """What pip installs beside autofit, and what is run in that environment.

    Attributes:
        pins: of pip's constraints; None for those of the project.
        material: the kind of `materials.py` that its scripts train.
        is_checked_out: whether its scripts are those of its repository, a checkout of which is needed.
    """

    requirements: tuple[str, ...]
    scripts: tuple[Script, ...]
    pins: tuple[str, ...] | None = None
    material: str = ""
    is_checked_out: bool = False


def _of_diffusers(file: str, *arguments: str) -> Script:
    common = ("--output_dir=out", "--resolution=256", "--max_train_steps=10", "--gradient_checkpointing")
    return Script(f"examples/{file}", (*arguments, *common), ("--batch-arg", "--train_batch_size="))


def _of_torchtitan(config: str, batch_size: int, *launched: str) -> Script:
    return Script(
        "-m torchtitan.train",
        ("--module", "llama3", "--config", config),
        ("--batch-arg", "--training.local-batch-size="),
        ("--nproc", "8", *launched),
        batch_size=batch_size,
        shown=config,
    )


def _of_torchtune(kind: str, **others: str) -> Script:
    run = ("run", f"{kind}_finetune_single_device", "--config", f"{HERE / f'torchtune_{kind}.yaml'}")
    return Script("tune", run, ("--batch-arg", "batch_size="), **others)  # type: ignore[arg-type]


_TEXT_TO_IMAGE = ("--pretrained_model_name_or_path=stable-diffusion", "--train_data_dir=captioned")
# Losses of TRL are made of log probabilities, by a head of its own: a workload brings that. The other scripts
# have models or samples that no knob makes.
STACKS = {
    "trainer": Stack(
        ("transformers", "peft", "accelerate", "deepspeed"),
        (
            Script("trainer_lora.py", knobs=f"--seq-len 512 {_LORA}", batch_size=8),
            Script(
                "trainer_ranks.py", ("fsdp",), ranks=("--nproc", "8", "--rank", "7"), phases=("checkpoint",)
            ),
            Script("trainer_ranks.py", ("zero",), ranks=("--nproc", "8", "--launcher", "deepspeed")),
            Script("trainer_evaluates.py", phases=("evaluation", "checkpoint"), peak_phase="evaluation"),
        ),
    ),
    "trl": Stack(
        ("trl", "peft"),
        (
            Script("trl_sft.py", knobs=_LORA, model=f"{HERE / 'trl_model.py'}:sft"),
            Script("trl_dpo.py", knobs=_LORA, model=f"{HERE / 'trl_model.py'}:dpo"),
            Script("trl_reward.py"),
            Script("trl_grpo.py", phases=("generation",)),
        ),
    ),
    "axolotl": Stack(
        ("axolotl",),
        (
            Script("axolotl", ("train", f"{HERE}/axolotl.yml"), ("--batch-arg", "--micro-batch-size=")),
            Script("-m axolotl.cli.train", (f"{HERE}/axolotl.yml",), ("--batch-arg", "--micro-batch-size=")),
        ),
        pins=_TORCH_ALONE,
        material="llama",
    ),
    "llamafactory": Stack(
        ("llamafactory",),
        (
            Script(
                "llamafactory-cli",
                ("train", f"{HERE}/llamafactory.yaml"),
                ("--batch-arg", "per_device_train_batch_size="),
                phases=("evaluation", "checkpoint"),
            ),
        ),
        pins=_TORCH_ALONE,
        material="llama",
    ),
    "diffusers": Stack(
        ("diffusers", "transformers", "peft", "accelerate", "datasets", "torchvision"),
        (
            _of_diffusers("text_to_image/train_text_to_image.py", *_TEXT_TO_IMAGE, "--use_ema"),
            _of_diffusers("text_to_image/train_text_to_image_lora.py", *_TEXT_TO_IMAGE),
            _of_diffusers(
                "dreambooth/train_dreambooth_lora_flux.py",
                "--pretrained_model_name_or_path=flux",
                "--instance_data_dir=pictures",
                "--instance_prompt=a picture",
                "--mixed_precision=bf16",
            ),
        ),
        pins=_TORCH_ALONE,
        material="pipelines",
        is_checked_out=True,
    ),
    "torchtitan": Stack(
        (
            "torchdata",
            "datasets<4.8",
            "tokenizers",
            "safetensors",
            "tyro",
            "tensorboard",
            "einops",
            "pillow",
            "spmd_types==0.2.1",
        ),
        (
            _of_torchtitan(
                "llama3_debugmodel", 8, "--launcher", "torchrun --rdzv_backend c10d --role rank --tee 3"
            ),
            _of_torchtitan("llama3_8b", 1),
        ),
        pins=_TORCH_ALONE,
        material="torchtitan",
        is_checked_out=True,
    ),
    "torchtune": Stack(
        ("torchtune", "torchao"),
        (
            _of_torchtune("lora"),
            _of_torchtune(
                "full",
                knobs="--precision bf16 --optimizer-impl fused --grad-accumulation 2",
                model=f"{HERE / 'torchtune_model.py'}:workload",
            ),
        ),
        pins=(*_TORCH_ALONE, "torchao==0.10.0"),  # torchtune 0.6 imports what later ones have elsewhere
        material="llama3-of-meta",
    ),
}


def environment_of(name: str) -> Path:
    """The programs of a stack's environment, made where it is not there."""
    folder = paths.state_dir() / "stacks" / name
    programs, stack = folder / "bin", STACKS[name]
    if not (programs / "autofit").exists():
        venv.create(folder, with_pip=True, clear=True)
        pins = ROOT / "constraints.txt"
        if stack.pins is not None:
            pins = folder / "constraints.txt"
            pins.write_text("\n".join(stack.pins))
        pip = [programs / "pip", "install", "-q", "-c", pins]
        subprocess.run([*pip, "-e", ROOT, *stack.requirements], check=True)
    return programs


def estimated(
    programs: Path, folder: Path, batch_size: int, *what: str, checkout: Path | None = None
) -> dict[str, Any]:
    """What `autofit estimate` says.

    Args:
        checkout: of the repository whose modules the script imports.

    Raises:
        RuntimeError: it says nothing.
    """
    command = [programs / "autofit", "estimate", *what, "--batch-size", str(batch_size), "--json"]
    variables = {} if checkout is None else {"PYTHONPATH": str(checkout.resolve())}
    ran = subprocess.run(
        [*command, "--gpu", "a100-40g"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **variables},
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def _options(script: Script, checkout: Path | None) -> list[str]:
    """Of `estimate`, for a script."""
    places = [HERE / script.file, *([checkout / script.file] if checkout else [])]
    file = next((str(place) for place in places if place.is_file()), script.file)
    return [
        "--script",
        file,
        *(f"--script-arg={each}" for each in script.arguments),
        *script.batch,
        *script.ranks,
    ]


def _faults(script: Script, once: dict[str, Any], twice: dict[str, Any]) -> Iterator[str]:
    """What does not hold of the answers at a batch size and at twice that."""
    parts, peak = once["breakdown"], once["peak_allocated_bytes"]
    if not 0 < parts["parameters"] + parts["optimizer_state"] < peak:
        yield "its peak is not above its weights and optimizer state"
    if not peak < twice["peak_allocated_bytes"]:
        yield "twice the batch takes no more"
    named = [phase["name"] for phase in once["phases"]]
    missing = {"forward", "backward", "optimizer", *script.phases} - {*named}
    if missing:
        yield f"no phase is {', '.join(sorted(missing))}"
    if script.peak_phase and script.peak_phase != once["peak_phase"]:
        yield f"its peak is in the {once['peak_phase']} rather than the {script.peak_phase}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stacks", nargs="*", choices=[[], *STACKS], help="default: all")
    for name in (name for name, stack in STACKS.items() if stack.is_checked_out):
        parser.add_argument(
            f"--{name}", type=Path, help="a checkout of its repository, whose scripts are run"
        )
    parser.add_argument(
        "--environment", type=Path, help="of the stacks that are named, rather than one made for each"
    )
    parser.add_argument("--script", action="append", help="repeatable; default: all of a stack")
    given = parser.parse_args()
    is_wrong = False
    print("| stack | script | batch | allocated peak, MiB | at twice | peak in | by knobs |")
    print("|---|---|---|---|---|---|---|")
    for name in given.stacks or list(STACKS):
        stack, checkout = STACKS[name], getattr(given, name, None)
        if stack.is_checked_out and checkout is None:
            print(f"{name} is left out without --{name}", file=sys.stderr)
            continue
        programs = given.environment.absolute() / "bin" if given.environment else environment_of(name)
        with tempfile.TemporaryDirectory() as folder:
            if stack.material:
                making = [programs / "python", HERE / "materials.py", stack.material, folder]
                subprocess.run(making, check=True, capture_output=True)
            for script in stack.scripts:
                if script.file not in (given.script or [script.file]):
                    continue
                options, size = _options(script, checkout), script.batch_size
                once, twice = (
                    estimated(programs, Path(folder), each, *options, checkout=checkout)
                    for each in (size, 2 * size)
                )
                faults = list(_faults(script, once, twice))
                beside = "–"
                if script.knobs:
                    model = ("--model", script.model, *script.knobs.split())
                    knobs_bytes = estimated(programs, Path(folder), size, *model)["peak_allocated_bytes"]
                    apart = knobs_bytes / once["peak_allocated_bytes"] - 1
                    beside = f"{knobs_bytes / 2**20:,.1f} ({apart:+.3%})"
                    faults += [f"the knobs say {apart:+.3%}"] if abs(apart) > _MOST_APART else []
                one, two = (f"{each['peak_allocated_bytes'] / 2**20:,.1f}" for each in (once, twice))
                print(
                    f"| {name} | `{script.shown or script.file}` | {size} | {one} | {two} "
                    f"| {once['peak_phase']} | {beside} |"
                )
                for fault in faults:
                    print(f"{name}, {script.file}: {fault}", file=sys.stderr)
                sys.stdout.flush()
                is_wrong = is_wrong or bool(faults)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
