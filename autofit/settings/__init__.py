"""Settings and options of `autofit tune`: their values, where they are read from, and the target."""
