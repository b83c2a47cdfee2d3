"""Makes the table of cuDNN's plans, shipped in `autofit_workers/replay/data`, and says how good it is.

    python -m tests.bench.plan_table ask --library PATH/libcudnn.so.9 --answers FOLDER [--every 2]
                                         [--families uneven]
    python -m tests.bench.plan_table build --answers FOLDER [--out FOLDER]
    python -m tests.bench.plan_table check --answers FOLDER

`ask` lets a libcudnn plan the convolutions of `convolution_shapes.py` for each architecture, without a
GPU; minutes for each. `build` writes the tables. `check` leaves out one family of models at a time and
compares the first plan's workspace with cuDNN's, for the table and for the formulas.

Shipped is, by `--every` of float32 / float16 / bfloat16:

    9.20   sm_80, 86, 89, 90  1 / 1 / 2      sm_70, 75  1 / 2 / -    sm_100, 120  2 / 2 / 2
    9.27   sm_80, 86, 89, 90  2 / 4 / 4      sm_75      2 / 4 / -    sm_100, 120  4 / 4 / 4
    9.8    sm_80, 86, 89      2 / 4 / -, of the uneven ones 1 / 2 / -

9.27 stands for the 9.26 of PyTorch 2.15, 9.8 for all that cannot be asked without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from autofit.hardware.chips import properties_for
from autofit.hardware.gpus import catalogue_architectures
from autofit_workers.replay.plans.cudnn import Cudnn, dotted
from autofit_workers.replay.plans.plan_table import file_name, reduced
from autofit_workers.replay.plans.workspace import goes_to_cudnn
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.work import Convolution, ConvPass
from tests.bench.convolution_shapes import Geometry, all_shapes
from tests.bench.plan_table_check import check
from tests.bench.plan_table_file import encoded
from tests.bench.plan_table_rows import Answer, kept_answers, read_answers, write_answers

DATA = Path(__file__).parents[2] / "workers" / "autofit_workers" / "replay" / "data"
DTYPES = ("float32", "float16", "bfloat16")
# Batches by type, contiguous and channels last; a quarter of the shapes gets the ends, too.
_BATCHES = {"float32": ((8, 32, 128), (32,)), "float16": ((8, 32, 128), (32,)), "bfloat16": ((32,), (32,))}
_TORCH_RELEASE = (2, 13)  # the newest that is supported: it hands cuDNN the most
_END_BATCHES = (1, 512)
_MAX_TENSOR_BYTES = 16 * 2**30


def calls(
    geometries: list[Geometry], every: int, dtype: str, capability: int
) -> Iterator[tuple[str, Convolution]]:
    """What PyTorch asks cuDNN for, each with the family it comes from."""
    for index, geometry in enumerate(geometries[::every]):
        for channels_last, batches in zip((False, True), _BATCHES[dtype], strict=True):
            ends = _END_BATCHES if index % 4 == 0 and not channels_last and len(batches) > 1 else ()
            for num_samples in (*batches, *ends):
                for conv_pass in ConvPass:
                    call = geometry.call(conv_pass, num_samples, dtype, channels_last=channels_last)
                    if goes_to_cudnn(call, capability, _TORCH_RELEASE) and _is_runnable(call):
                        yield geometry.family, call


def _is_runnable(call: Convolution) -> bool:
    largest = max(math.prod(call.input_shape), math.prod(call.output_shape))
    return largest * call.element_bytes <= _MAX_TENSOR_BYTES


def ask(options: argparse.Namespace) -> None:
    """Writes the answers of one libcudnn, a file for each architecture and type."""
    cudnn = Cudnn.load(options.library)
    geometries = all_shapes()
    for architecture in options.architectures:
        capability = Architecture.of(architecture).capability
        device = cudnn.device(properties_for(architecture).to_json())
        for dtype in options.dtypes:
            asked = [
                Answer(family=family, call=call, plans=cudnn.plans(call, device))
                for family, call in calls(geometries, options.every, dtype, capability)
                if not options.families or family in options.families
            ]
            answers = [dataclasses.replace(each, plans=reduced(each.plans)) for each in asked if each.plans]
            name = f"{architecture}-{dotted(cudnn.version)}-{dtype}"
            print(f"{name}: {len(answers)} of {len(asked)} calls have plans", flush=True)
            if options.families:
                # First, as without the option: of calls that look the same to the table the first counts.
                kept = kept_answers(options.answers, name)
                answers = [*(a for a in kept if a.family not in options.families), *answers]
            write_answers(options.answers, name, answers)


def build(options: argparse.Namespace) -> None:
    """Writes the tables."""
    options.out.mkdir(exist_ok=True)
    total_bytes = 0
    for (architecture, version), answers in read_answers(options.answers).items():
        major, minor, *_ = map(int, version.split("."))
        path = options.out / file_name(Architecture.of(architecture).capability, (major, minor))
        path.write_bytes(encoded(version, ((answer.call, answer.plans) for answer in answers)))
        total_bytes += path.stat().st_size
        print(f"{path.name}: {len(answers)} calls, {path.stat().st_size} bytes", flush=True)
    print(f"{total_bytes} bytes in all")


def main() -> None:
    """Runs one of the three steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    asking = steps.add_parser("ask")
    asking.add_argument("--library", type=Path, help="libcudnn; without it that of the environment")
    asking.add_argument("--architectures", nargs="+", default=catalogue_architectures())
    asking.add_argument("--dtypes", nargs="+", default=list(DTYPES))
    asking.add_argument("--every", type=int, default=1, help="only every n-th shape")
    asking.add_argument("--families", nargs="+", help="only those, beside the answers that are there")
    asking.set_defaults(run=ask)
    building = steps.add_parser("build")
    building.add_argument("--out", type=Path, default=DATA, help="folder of the tables")
    building.set_defaults(run=build)
    checking = steps.add_parser("check")
    checking.add_argument("--families", nargs="+", help="those to leave out; all with 20 shapes or more")
    checking.set_defaults(run=lambda options: check(read_answers(options.answers), options.families))
    for step in (asking, building, checking):
        step.add_argument("--answers", type=Path, required=True, help="folder of cuDNN's answers")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
