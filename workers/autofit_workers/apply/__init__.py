"""Applies a trial's knobs to model, steps and PyTorch's flags. The package itself does not import torch."""
