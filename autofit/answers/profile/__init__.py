"""Lays out the views of a profile, such as its operators or its timeline, as sections of tables."""
