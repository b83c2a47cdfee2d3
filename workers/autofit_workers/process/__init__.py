"""Child processes: starting, messages, restrictions and ending. Uses only the standard library."""
