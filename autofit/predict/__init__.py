"""Predictions on a card from traces: peaks with their intervals, step times and convolution plans."""
