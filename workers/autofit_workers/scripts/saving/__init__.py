"""Handles the objects that a script saves and loads again during its trial."""
