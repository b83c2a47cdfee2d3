"""Runs a search for the largest batch, from its settings to its result."""
