"""Batches of a script: their size, how it is set, and the lengths of their samples."""
