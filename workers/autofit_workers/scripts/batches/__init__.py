"""A script's batches: their size, how it is set, and the lengths of their samples."""
