"""Sections of answers about one configuration, one card or several."""
