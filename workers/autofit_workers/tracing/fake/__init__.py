"""Fake GPU: its tensors, its shapes, and the memory that libraries take on it."""
