"""Runs trials: one spec in, one outcome out; torch is imported in child processes alone.

door.py       all that `autofit` may import of this package, beside `spec`, `process` and `replay`
run.py        runs a trial where it belongs: in a fresh process, in one for each rank, in a kept one
isolate.py supervision.py ranks.py outcomes.py    a trial's process, seen from outside
child.py      a trial's process, seen from inside
measure/      measures on CUDA and on the CPU
model_parts.py listing_parts.py    lists a language model's parameters
record.py     records ground truth on a machine with a GPU
"""
