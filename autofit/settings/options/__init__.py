"""All settings of `autofit tune`, each declared once: a field with its type, default and option.

The command line, settings files, the environment, jobs and earlier answers read the table of options. An
option that is a knob comes from the knob's own file in `autofit_workers/spec/knobs`.

option          what an option is
workload        what is run: a model, or a script
card            which card is meant, and where to measure
configuration   how it is run, knobs among them, and which of that is varied
search          what is searched for, and how long
places          where studies are kept and trials run
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit.settings.options.card import CardSettings
from autofit.settings.options.configuration import ConfigurationSettings
from autofit.settings.options.option import Option, Topic, options_of
from autofit.settings.options.places import PlaceSettings
from autofit.settings.options.search import SearchSettings
from autofit.settings.options.workload import WorkloadSettings

__all__ = ["OPTIONS", "DeclaredSettings", "Option", "Topic"]


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeclaredSettings(PlaceSettings, SearchSettings, ConfigurationSettings, CardSettings, WorkloadSettings):
    """All settings of `autofit tune` as they are declared; `TuneSettings` checks them.

    Fields of the base classes come in the order from the last to the first. None of these classes is made by
    itself, so that `TuneSettings` alone has the methods of a dataclass, which take a millisecond a class.
    """


OPTIONS: dict[str, Option] = {option.name: option for option in options_of(DeclaredSettings)}
