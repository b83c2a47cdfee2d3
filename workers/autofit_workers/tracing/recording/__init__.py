"""What a traced step did: allocations, calls, where they were made, and who owns them."""
