"""Seconds of a step on a card, predicted from its traced work.

speeds      what a device can do at most: products by data type, bytes a second, units
kernels     what an operator runs on the device: kernels, each with its class, products and bytes
products    how long a product of matrices takes: tiles, waves, and splits of the sum
tiles       the sides of tiles that kernels of an architecture have
collectives what ranks exchange: bytes, links and NCCL's algorithms, by links.toml
costs       how long a kernel takes, by the constants of its class
constants   the constants, of constants.toml
lines       the work of a step at any batch size, from its traces at several
step        the step: what the host launches, and what the device does, stream beside stream
tables      the data files
interval    confidence of the seconds: residuals by class of kernels and by card, of residuals.toml
"""
