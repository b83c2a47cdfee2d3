"""Searches as jobs of a Ray cluster: the queue, the packages of code, and the drivers."""
