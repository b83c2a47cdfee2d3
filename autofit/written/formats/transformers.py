"""TrainingArguments of transformers, as a JSON file and as a call in Python.

The keys are those of transformers 4.44 to 5.23, src/transformers/training_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.written.files.json_file import JsonFile
from autofit.written.files.python_call import PythonCall
from autofit.written.formats import hugging_face as hf
from autofit.written.formats.format import Format
from autofit.written.setting import Setting
from autofit.written.told import Told

_TOOL = "transformers' TrainingArguments"
_SIGNS = frozenset(
    (
        "output_dir",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "max_steps",
        "optim",
        "lr_scheduler_type",
        "logging_steps",
        "save_strategy",
        "eval_strategy",
    )
)
_CALL = """\
from transformers import TrainingArguments

training_arguments = TrainingArguments(
{arguments})
"""


def _tell(setting: Setting, found: Mapping[str, Any]) -> Told:
    told = Told()
    if not found:  # releases before 5.0 want one
        told.values["output_dir"] = "trainer_output"
    hf.tell_batches(told, setting, "per_device_train_batch_size")
    hf.tell_precision(told, setting)
    hf.tell_parallel(told, setting)
    hf.tell_checkpointing(told, setting)
    hf.tell_compile(told, setting)
    hf.tell_optimizer(told, setting, "optim")
    hf.tell_clipping(told, setting)
    if setting.knobs.kernels == "liger":
        told.say("kernels", use_liger_kernel=True)
    if not setting.on_gpu:
        told.values["use_cpu"] = True
    return told


AS_JSON = Format(
    name="transformers-json",
    tool=_TOOL,
    use='HfArgumentParser(TrainingArguments).parse_json_file("FILE"), or python train.py FILE',
    file=JsonFile(_SIGNS, _TOOL),
    tell=_tell,
)
AS_PYTHON = Format(
    name="transformers-python",
    tool=_TOOL,
    use="python FILE, or from FILE import training_arguments",
    file=PythonCall(name="TrainingArguments", new=_CALL),
    tell=_tell,
)
