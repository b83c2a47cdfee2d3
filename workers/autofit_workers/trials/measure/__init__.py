"""Measuring for real: one step loop, and what each device adds to it."""
