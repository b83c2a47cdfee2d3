"""Knobs: what each means to PyTorch, and how it is applied to a trial. No torch at import."""
