"""The former name of `autofit.events`, until 0.3."""

import warnings

from autofit.events import *  # noqa: F403 - whatever there is

warnings.warn("autofit.service.events is now autofit.events", DeprecationWarning, stacklevel=2)
