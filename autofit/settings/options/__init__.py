"""All settings of `autofit tune`, each declared once: a field with its type, default and option.

The command line, settings files, the environment, jobs and earlier answers read the table of options. An
option that is a knob comes from the knob's own file in `autofit_workers/spec/knobs`.

    option          class of an option: reader, help and properties
    workload        model or script that is run
    card            card to predict for, and where to measure
    configuration   how the workload is run, such as its knobs, and the knobs that are varied
    search          goal of the search, and its limits
    places          where studies are stored and trials run
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
    """All settings of `autofit tune`, each declared once with its type, default and option.

    `TuneSettings` adds checks, and is the only class that is instantiated. So only `TuneSettings` gets the
    methods of a dataclass, which take a millisecond for each class to generate. Fields of the last base class
    come first.
    """


OPTIONS: dict[str, Option] = {option.name: option for option in options_of(DeclaredSettings)}
