"""Predictions at any size of a sample, such as tokens or pixels, and at any batch size."""
