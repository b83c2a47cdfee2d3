"""Fake GPU: its tensors, the shapes of operators' results, and the memory that libraries allocate on it."""
