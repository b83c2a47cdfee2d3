"""Sizes and shapes as functions of the batch size and the size of a sample."""
