"""Computes intervals of predicted peaks from workspaces, errors against real runs, and observed peaks."""
