"""Predicting: a training step on a GPU that is not there, and its peak for any batch size.

Importing this package, `curve`, `workspace` and `device_properties` needs no torch; `probe` and what it
imports do.
"""
