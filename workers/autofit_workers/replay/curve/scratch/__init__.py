"""Bytes of operators' scratch memory, which they take beside their outputs, by card and library."""
