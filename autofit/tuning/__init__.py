"""One search, from settings to result."""
