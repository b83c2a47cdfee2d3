"""Convolution algorithms: checks of the chosen one, likely times of each, and a plan for all layers."""
