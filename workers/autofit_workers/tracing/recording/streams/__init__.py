"""What a traced step does on CUDA's streams: uses, waits, and the order that follows."""
