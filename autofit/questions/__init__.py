"""Answers questions other than the largest batch: whether it fits, on which cards, and what saves memory."""
