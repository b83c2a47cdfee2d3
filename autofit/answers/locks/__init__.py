"""Lays out locks of memory, and what grew since, as sections."""
