"""Phrases, number formats and command lines shared by all answers."""
