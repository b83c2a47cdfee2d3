"""Intervals of predicted peaks, from errors of real runs, what workspaces may add, and observed peaks."""
