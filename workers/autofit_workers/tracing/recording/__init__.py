"""Recording of a traced step: its allocations and calls, where they were made, and who owns them."""
