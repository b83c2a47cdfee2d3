"""Names of the plugin for pytest: mark, fixture, option and settings, and where tests keep what is found."""

from __future__ import annotations

from typing import Any

import pytest

MARK = "memory"
# Arguments by which the mark is known as this plugin's.
OF_THE_MARK = frozenset({"gpu", "gpu_mem", "batch_size", "max_peak"})
FIXTURE = "peak_memory"
UPDATE = "--memory-update"
LOCK_FILE, TOLERANCE = "memory_lock_file", "memory_tolerance"

# Attribute of a report that carries what was found out about a marked test; pytest-xdist sends it along.
FOUND = "autofit_memory"
found_of_item = pytest.StashKey[dict[str, Any]]()
report_of_fork = pytest.StashKey[pytest.TestReport]()
