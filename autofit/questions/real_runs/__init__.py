"""Answers from real runs: peaks that sharpen predictions, observed runs, and memory snapshots.

observe.py        a real peak, held against the prediction of its configuration
observed_run.py   peaks of a user's own training, as `autofit.observed` writes them
snapshot.py       a memory snapshot of a real run
"""
