"""Helpers in users' own training loops."""
