"""Cards: their catalogue, their chips, memory outside the allocator, and the budget that is left."""
