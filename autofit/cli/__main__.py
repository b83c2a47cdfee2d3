"""Runs the command line `autofit` as `python -m autofit.cli`."""

import sys

from autofit.cli import main

sys.exit(main())
