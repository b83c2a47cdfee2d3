"""Application of knobs to a trial by PyTorch. The package imports no torch itself."""
