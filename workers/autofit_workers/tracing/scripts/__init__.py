"""Traces an unmodified training script on a fake GPU; tracer.py runs it."""
