"""Memory of language model servers: weights, activations, and what is left for the KV cache.

`architecture` reads from a model's parameters what its layers keep of a token, `weights` what one rank loads.
`profile_run` replays an engine's profiling pass through PyTorch's allocator. `pool` cuts the memory that is
left into blocks. `engine` says what an engine is; `vllm`, `sglang` and `tgi` have the rules of each, with the
file and the release that states them, and `engines` is the table of the engines. No module needs torch.
"""
