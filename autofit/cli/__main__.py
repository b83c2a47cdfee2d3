"""Runs the command line `autofit` as `python -m autofit.cli`."""

import sys

from autofit_workers.installation import enter

sys.exit(enter())
