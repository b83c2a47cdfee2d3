"""Predictions at any size of a sample, such as tokens or pixels, beside any batch size."""
