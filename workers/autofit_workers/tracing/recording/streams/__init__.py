"""Recording of what a traced step does on CUDA streams: uses, waits, and the order that follows."""
