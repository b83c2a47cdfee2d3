"""The former name of `autofit.serve.metrics`, until 0.3."""

import warnings

from autofit.serve.metrics import *  # noqa: F403 - whatever there is

warnings.warn("autofit.service.metrics is now autofit.serve.metrics", DeprecationWarning, stacklevel=2)
