"""Traces of a workload: made on demand or ahead, and kept for later questions."""
