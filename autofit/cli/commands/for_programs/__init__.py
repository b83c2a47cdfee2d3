"""Commands for programs that call autofit: the schemas of its documents, and tools for assistants."""
