"""Records a traced step: its allocations and calls, their source lines, and their owners."""
