"""Memory snapshots of real runs, as `torch.cuda.memory._dump_snapshot` writes them.

snapshot   what a snapshot holds: events, segments with their blocks, settings
pickled    reads the pickle itself
tables     reads a snapshot as CSV: a table of events, and one of segments
frames     what the frames of an allocation say: its lines, operator and phase
start      what was reserved and allocated before the first event
blocks     follows events block by block, at their real addresses
"""

from autofit_workers.replay.snapshots.snapshot import Event, OutOfMemory, Segment, Snapshot

__all__ = ["Event", "OutOfMemory", "Segment", "Snapshot"]
