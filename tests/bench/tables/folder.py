"""Where the tables of others' measurements lie unless a bench is told another place."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_TABLES = Path(
    os.environ.get("GROUND_TRUTH_TABLES", Path(__file__).parents[4] / "shared" / "groundtruth")
)
