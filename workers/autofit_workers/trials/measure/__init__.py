"""Measures real steps: one loop of steps, and what each device adds to it."""
