"""Stand-in for a package that has modules and no functions of its own."""

__all__: list[str] = []
