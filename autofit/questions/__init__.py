"""Answers questions about one configuration: whether it fits in memory, on which GPUs, what saves memory."""
