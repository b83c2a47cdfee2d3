"""Helpers for users' own training loops."""
