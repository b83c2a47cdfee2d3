"""Dispatchers, which run trials on this machine or on a Ray cluster."""
