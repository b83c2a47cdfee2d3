"""Applies a trial's knobs to model, steps and PyTorch's flags. Importing the package imports no torch."""
