"""Sections of the views of a profile."""
