"""Runs one search, from its settings to its result."""
