"""Lays out the result of a search for the largest batch as sections of tables and sentences."""
