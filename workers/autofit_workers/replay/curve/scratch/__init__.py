"""Bytes of operators' scratch memory, which they take besides their outputs, by card and library."""
