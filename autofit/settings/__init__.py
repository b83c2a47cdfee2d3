"""Settings and options of `autofit tune`, each once: values, sources, and the target of a search."""
