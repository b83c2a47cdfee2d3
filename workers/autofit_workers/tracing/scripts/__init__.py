"""A training script as it is, on a GPU that is not there."""
