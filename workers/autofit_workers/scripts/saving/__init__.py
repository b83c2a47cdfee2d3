"""Handles what a script saves while it is tried, and loads again."""
