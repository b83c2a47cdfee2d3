"""The side that measures: one trial in, one outcome out.

Torch and the standard library suffice here. `workers.run(spec)` is the one door.
"""

from workers.run import run

__all__ = ["run"]
