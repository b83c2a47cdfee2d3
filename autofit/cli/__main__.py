"""`python -m autofit.cli`, the same as `autofit`."""

import sys

from autofit.cli import main

sys.exit(main())
