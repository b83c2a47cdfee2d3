"""Knobs, which may be varied besides the batch size, one file for each.

    knob.py      properties of a knob: its values, help, words, usual cost
    setting.py   `KNOBS`, all of them; `Knobs`, a value for each

To add a knob, write its file and give it a line and a field in `setting.py`; the command line, settings
files, searches, texts and trials read the rest from there.
"""

from autofit_workers.spec.knobs.knob import Knob, Part
from autofit_workers.spec.knobs.setting import KNOBS, Knobs

__all__ = ["KNOBS", "Knob", "Knobs", "Part"]
