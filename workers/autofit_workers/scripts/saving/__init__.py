"""Handles the objects that a script saves, and loads again, while it is tried."""
