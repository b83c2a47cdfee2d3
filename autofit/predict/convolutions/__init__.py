"""Convolution algorithms: which are looked at, what they cost, and one for each layer."""
