"""Workloads made of what a trainer holds in this process: its model without values, and batches like its own.

Nothing of the trainer's is changed: the model is pickled with empty tensors in the place of its own, and
random numbers that its data set or collator draws are put back.
"""
