"""Batches of a script: their size, ways to set it, and the lengths of their samples."""
