"""Seconds of a step on a card, predicted from its traced work.

speeds      limits of a device: FLOP per second by data type, bytes per second, number of multiprocessors
kernels     kernels that an operator runs on the device, each with its class, product and bytes
products    seconds of a matrix product: tiles, waves, and splits of the sum
attention   seconds of fused attention: tiles of queries, blocks of keys, splits of them
tiles       sizes of the tiles that kernels of an architecture have
collectives seconds of collectives: bytes, links and NCCL's algorithms, by links.toml
costs       seconds of a kernel, by the constants of its class
constants   constants of kernel classes, from constants.toml
lines       work of a step at any batch size, from its traces at several
step        simulation of a step: launches of the host, and the device's streams
tables      the data files
interval    confidence of a step's seconds, from past errors by class of kernels and by card (residuals.toml)
"""
