"""Child processes: start, messages, restrictions and end. Uses only the standard library."""
