"""Replaces layers of a transformers model by Liger's kernels, with transformers' own function."""

from __future__ import annotations

from typing import Any

from torch import nn

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.kernels import liger_options
from autofit_workers.workload.libraries.importing import imported

_LIGER = "liger_kernel.transformers.monkey_patch"
_APPLYING = "transformers.integrations.liger"


def set_kernels(model: nn.Module, knobs: Knobs) -> None:
    """Puts Liger's kernels into a transformers model, `model` or within it, if the knob `kernels` says so.

    Liger also replaces some functions of transformers' modules until the process ends, which is acceptable in
    a trial's own process.

    Raises:
        InapplicableError: `model` has no model of transformers, or the library has no kernels for it.
        MissingLibraryError: the library is not installed here.
    """
    if knobs.kernels == "default":
        return
    liger: Any = imported(_LIGER, "liger", "a set of kernels", distribution="liger-kernel")
    library: Any = imported("transformers", "liger")
    found = next((each for each in model.modules() if isinstance(each, library.PreTrainedModel)), None)
    if found is None:
        raise InapplicableError(
            f"kernels {knobs.kernels} is for models of transformers, which {type(model).__name__} is not: "
            "leave it at default"
        )
    if found.config.model_type not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise InapplicableError(
            f"Liger has no kernels for models of type {found.config.model_type}: leave kernels at default"
        )
    applying: Any = imported(_APPLYING, "liger")
    applying.apply_liger_kernel(found, liger_options(knobs.loss))
