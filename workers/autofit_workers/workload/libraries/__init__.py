"""Loads models of installed libraries as workloads, with a file for each library.

`autofit_workers.spec.workloads.libraries` lists them. Weights are random and nothing is downloaded.
"""
