"""Records a traced step's use of CUDA streams: memory uses, waits, and the resulting order."""
