"""Stand-in for a package, such as `flash_attn.layers`, that has modules but no functions of its own."""

__all__: list[str] = []
