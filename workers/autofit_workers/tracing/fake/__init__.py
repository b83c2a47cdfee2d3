"""The GPU that is not there: its tensors, its shapes, and the memory that libraries take on it."""
