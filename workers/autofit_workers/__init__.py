"""The side that measures: one trial in, one outcome out.

Torch and the standard library suffice here. `autofit_workers.run(spec)` is the one door.
"""

from autofit_workers.run import run

__all__ = ["run"]
