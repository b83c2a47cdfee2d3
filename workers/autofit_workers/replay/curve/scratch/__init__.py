"""Scratch memory of operators, which no output shows, by card and library."""
