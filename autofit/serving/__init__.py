"""Servers of language models: what an engine keeps for itself, and what is left for its KV cache.

`architecture` reads from a model's parameters what its layers keep of a token, `weights` what one rank loads.
`profile_run` replays an engine's profiling pass through PyTorch's allocator. `pool` cuts what is left into
blocks. `engine` says what an engine is; `vllm`, `sglang` and `tgi` are their rules, each with the file and
the release that states it, and `engines` is the table of them. No torch.
"""
