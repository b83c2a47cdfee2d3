"""Sections of a search's answer."""
