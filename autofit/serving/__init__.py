"""Memory of language model servers: weights, activations, and the memory left for the KV cache.

`architecture` reads from a model's parameters what its layers cache per token, `weights` what one rank loads.
`profile_run` replays an engine's profiling pass through PyTorch's allocator. `pool` divides the memory that
is left into blocks. `engine` describes engines; `vllm`, `sglang` and `tgi` have the rules of each, with the
file and the release that state them, and `engines` is the table of the engines. No module needs torch.
"""
