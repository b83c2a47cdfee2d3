"""Table of all options of `autofit tune`: the reader of each option's value, its help and properties.

The command line, settings files, the environment, jobs and earlier answers read this table. An option that
is a knob comes from the knob's own file in `autofit_workers/spec/knobs`.

option          what an option is
workload        what is run: a model, or a script
card            which card is meant, and where to measure
configuration   how it is run, knobs among them, and which of that is varied
search          what is searched for, and how long
places          where studies are kept and trials run
"""

from __future__ import annotations

from autofit.settings.options.card import CARD
from autofit.settings.options.configuration import CONFIGURATION
from autofit.settings.options.option import Option, Topic
from autofit.settings.options.places import PLACES
from autofit.settings.options.search import SEARCH
from autofit.settings.options.workload import WORKLOAD

__all__ = ["OPTIONS", "Option", "Topic"]

OPTIONS: dict[str, Option] = {
    option.name: option for option in (*WORKLOAD, *CARD, *CONFIGURATION, *SEARCH, *PLACES)
}
