"""Searches as jobs of a Ray cluster: the queue, what a job brings, and its driver."""
